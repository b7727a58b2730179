package node

import (
	"github.com/karstlog/karst/cluster/replica"
	"github.com/karstlog/karst/txn"
	txncoordinator "github.com/karstlog/karst/txn/coordinator"
)

// newTxns makes what runs transactions. It needs the groups.
func (n *Node) newTxns() *txncoordinator.Coordinator {
	c := n.o.Config.Transactions
	var peers txncoordinator.Peers
	if n.member != nil {
		peers = txnPeers{link: n.member.link}
	}
	return txncoordinator.New(txncoordinator.Options{
		BrokerID: n.id, Quorum: n.quorum, Set: n.set, IDs: n.cluster, Offsets: n.groups, Peers: peers,
		Subscribe: func() replica.Subscription { return n.quorum.Subscribe() },
		Rules:     txn.Rules{MaxTimeout: c.MaxTimeout, Expiry: c.Expiry}, AbortInterval: c.AbortInterval, ExpireInterval: c.ExpireInterval,
		Wall: n.o.Wall, Logger: n.log, Registry: n.registry,
	})
}
