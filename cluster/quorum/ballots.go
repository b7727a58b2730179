package quorum

import "github.com/hashicorp/raft"

// ballots hands on to Raft what others ask, and gives those a fair hearing that ask for a vote and are no voters yet by
// what this server knows. A change of members is committed once a majority has it. When the leader then dies for good, of
// two servers left one may have the promotion of the other still to come, and Raft refuses by its own configuration: as
// neither can do without the other, nobody would lead again. Raft as its author describes it votes by the logs alone, and
// that is safe: whoever wins has a majority of a configuration that is in its log, and its log has all that is committed
// (Ongaro, "Consensus: bridging theory and practice", 4.2.2; hashicorp/raft pull 526 for why the library looks).
//
// Only a candidate with a newer log than this server's is heard so: it may know of a change that this one does not. One
// that was taken out and was not told has an older one and goes on being refused.
func (q *Quorum) ballots(in <-chan raft.RPC, done <-chan struct{}) <-chan raft.RPC {
	out := make(chan raft.RPC)
	go func() {
		for {
			select {
			case rpc := <-in:
				q.admit(rpc.Command)
				select {
				case out <- rpc:
				case <-done:
					return
				}
			case <-done:
				return
			}
		}
	}()
	return out
}

// admit makes a request for a vote one that Raft decides by the logs, when it should.
func (q *Quorum) admit(command any) {
	switch r := command.(type) {
	case *raft.RequestVoteRequest:
		if _, ok := q.newcomer(raft.ServerID(r.ID), r.LastLogTerm, r.LastLogIndex); ok {
			r.ID = nil // as from a server so old that it does not say; its address stays, which is what is voted for
		}
	case *raft.RequestPreVoteRequest:
		if voter, ok := q.newcomer(raft.ServerID(r.ID), r.LastLogTerm, r.LastLogIndex); ok {
			r.ID = []byte(voter) // only looked up in the configuration
		}
	}
}

// newcomer tells whether a candidate is no voter here while its log is newer than this server's, and names one that is.
func (q *Quorum) newcomer(candidate raft.ServerID, term, index uint64) (voter raft.ServerID, ok bool) {
	node := q.node.Load()
	if node == nil {
		return "", false
	}
	for _, s := range configuration(node).Servers {
		if s.Suffrage == raft.Voter && s.ID == candidate {
			return "", false
		} else if s.Suffrage == raft.Voter {
			voter = s.ID
		}
	}
	var last raft.Log // of an empty log, or one that a snapshot replaced, any other is newer: Raft compares once more
	if n, err := q.log.LastIndex(); err != nil || n > 0 && q.log.GetLog(n, &last) != nil {
		return "", false
	}
	return voter, voter != "" && (term > last.Term || term == last.Term && index > last.Index)
}
