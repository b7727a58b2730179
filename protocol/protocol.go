// Package protocol serves Apache Kafka's wire protocol: connections, frames, the order of answers and the table of
// APIs. It knows bytes and versions, not meaning; what a request asks for is decided by the handler in the table.
//
// A connection has two goroutines. The first reads frames, orders them and runs their handlers inline; before it would
// wait for the socket, it writes every answer that is ready with one system call. The second starts when a handler
// returns without an answer; it runs what Call.Later was given and writes the answers that come late. Nobody else
// touches the socket, so a handler may be answered from any goroutine, under any lock.
//
// Answers leave in the order of the requests. A handler that returns has ordered its request: the next one of that
// connection may start. Only Reply and its kin end it.
package protocol
