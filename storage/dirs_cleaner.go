package storage

import "time"

// CleanerOptions say how compacted logs are cleaned. The zero value cleans nothing.
type CleanerOptions struct {
	Threads        int           // log.cleaner.threads: most logs that are cleaned at a time; 0 cleans none
	DedupeBytes    int64         // log.cleaner.dedupe.buffer.size: memory for keys, of all threads together; 0 is 128 MiB
	LoadFactor     float64       // log.cleaner.io.buffer.load.factor: how full a table of keys may become; 0 is 0.9
	BytesPerSecond float64       // log.cleaner.io.max.bytes.per.second, read and written, of all threads together; 0 for no bound
	Backoff        time.Duration // log.cleaner.backoff.ms: pause when no log needs cleaning; 0 is 15 s
}
