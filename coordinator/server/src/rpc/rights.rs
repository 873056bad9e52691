//! The table of calls: who may make each, and how it is handled.

use shardfeed_tls::Role;

/// Relation of a call to the jobs that an access token is limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The call is about one job, which must be among them.
    Job,
    /// The call is about no job, and harmless: for every token, limited or not.
    Any,
    /// The call is about more than jobs: only for tokens that are not limited.
    Whole,
}

/// Effect of a call on stored data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Reports data of this node, leader or not.
    Local,
    /// Reads data that the leader knows, or that never changes.
    Reads,
    /// Reads current data: the node first makes sure that no other node leads.
    Looks,
    Changes,
}

/// Record of a completed call in the audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IsAudited {
    Yes,
    /// It changes nothing, or the log, the events and the histories record it.
    No,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) roles: &'static [Role],
    pub(crate) reach: Reach,
    pub(crate) effect: Effect,
    pub(crate) audit: IsAudited,
}

use Role::{Admin, Coordinator, Operator, Trainer, Viewer, Worker};

/// People with read access.
const LOOK: &[Role] = &[Viewer, Operator, Admin];
/// People who manage jobs, datasets and workers.
const RUN: &[Role] = &[Operator, Admin];
/// People who manage the cluster and its access.
const RULE: &[Role] = &[Admin];
/// Processes that read data.
const READ: &[Role] = &[Worker, Trainer];
const NODES: &[Role] = &[Coordinator];
/// Every known principal.
const ALL: &[Role] = &[Coordinator, Worker, Trainer, Viewer, Operator, Admin];
/// Roles that may name a dataset, which a trainer's first use of its files does.
const NAME: &[Role] = &[Operator, Admin, Worker, Trainer];
/// Roles that may see the state of a dataset, and what was found of its files.
const SEE: &[Role] = &[Viewer, Operator, Admin, Worker, Trainer];

/// Defines [`Rpc`], and the [`Rules`] of each call. A call without a row does not compile.
macro_rules! calls {
    ($($rpc:ident: $roles:ident, $reach:ident, $effect:ident, $audit:ident;)*) => {
        /// The calls of all services, by their names in the protocol.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[derive(prometheus_client::encoding::EncodeLabelValue)]
        pub(crate) enum Rpc {
            $($rpc,)*
        }

        impl Rpc {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$rpc,)*];

            pub(crate) fn rules(self) -> Rules {
                let (roles, reach, effect, audit) = match self {
                    $(Self::$rpc => ($roles, Reach::$reach, Effect::$effect, IsAudited::$audit),)*
                };
                Rules { roles, reach, effect, audit }
            }
        }
    };
}

calls! {
    // call:          roles, reach, effect,  audit
    Join:             READ,  Any,   Changes, Yes;
    Heartbeat:        READ,  Any,   Reads,   No;
    Leave:            READ,  Any,   Changes, Yes;
    ClaimScans:       READ,  Any,   Changes, No;
    ReportListing:    READ,  Any,   Changes, No;
    ReportScan:       READ,  Any,   Changes, No;
    FailScan:         READ,  Any,   Changes, No;
    PutChunk:         READ,  Any,   Changes, No;
    GetChunk:         SEE,   Any,   Reads,   No;
    RegisterJob:      READ,  Job,   Changes, Yes;
    StartRank:        READ,  Job,   Changes, Yes;
    EndRank:          READ,  Job,   Changes, Yes;
    ReportSkipped:    READ,  Job,   Changes, No;
    LatestState:      READ,  Job,   Looks,   No;
    ClaimGroups:      READ,  Job,   Changes, No;
    // Each claim names a lease that the caller holds.
    BatchClaimGroups: READ,  Any,   Changes, No;

    GetStatus:        ALL,   Any,   Local,   No;
    GetCluster:       ALL,   Any,   Local,   No;
    WhoAmI:           ALL,   Any,   Local,   No;
    AddMember:        RULE,  Whole, Changes, Yes;
    RemoveMember:     RULE,  Whole, Changes, Yes;
    TransferLeader:   RULE,  Whole, Changes, Yes;
    SaveSnapshot:     RULE,  Whole, Looks,   Yes;
    ListAudit:        RULE,  Whole, Local,   Yes;
    CreateAccess:     RULE,  Whole, Changes, Yes;
    RevokeAccess:     RULE,  Whole, Changes, Yes;
    ListAccess:       RULE,  Whole, Looks,   Yes;
    // Its credential is the join token.
    ExchangeAccess:   ALL,   Any,   Changes, Yes;
    HoldJob:          RUN,   Job,   Changes, Yes;
    DeclareGone:      RUN,   Job,   Changes, Yes;
    RemoveJob:        RUN,   Job,   Changes, Yes;
    CordonWorker:     RUN,   Whole, Changes, Yes;
    RemoveDataset:    RUN,   Whole, Changes, Yes;
    AddDataset:       NAME,  Any,   Changes, Yes;
    GetDataset:       SEE,   Any,   Looks,   No;
    ListDatasets:     LOOK,  Any,   Looks,   No;
    ListJobs:         LOOK,  Any,   Looks,   No;
    ListWorkers:      LOOK,  Any,   Looks,   No;
    GetJob:           LOOK,  Job,   Looks,   No;
    ListEpochs:       LOOK,  Job,   Looks,   No;
    ListShards:       LOOK,  Job,   Looks,   No;
    ListRanks:        LOOK,  Job,   Looks,   No;
    GetBatch:         LOOK,  Job,   Looks,   No;
    GetShardHistory:  LOOK,  Job,   Looks,   No;
    GetEpochMap:      LOOK,  Job,   Looks,   No;
    // The answer is about every job.
    ListEvents:       LOOK,  Whole, Looks,   No;

    // `guard::check_peer` checks their role, before the message is read.
    Introduce:        NODES, Any,   Local,   No;
    Exchange:         NODES, Any,   Local,   No;
    PushChunk:        NODES, Any,   Local,   No;
    PullChunk:        NODES, Any,   Local,   No;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_call_of_the_protocol_has_its_row() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/shardfeed/coordinator/v1");
        let mut calls = BTreeSet::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let named = text.lines().filter_map(|line| line.trim().strip_prefix("rpc "));
            calls.extend(named.map(|rest| rest.split('(').next().unwrap().to_owned()));
        }
        let rows: BTreeSet<String> = Rpc::ALL.iter().map(|rpc| format!("{rpc:?}")).collect();
        assert_eq!(rows, calls);
        assert_eq!(rows.len(), Rpc::ALL.len());
    }

    #[test]
    fn only_nodes_and_admins_reach_what_belongs_to_the_whole_cluster() {
        for rpc in Rpc::ALL {
            let Rules { roles, effect, audit, .. } = rpc.rules();
            assert!(!roles.is_empty(), "{rpc:?}");
            assert!(!roles.contains(&Coordinator) || [NODES, ALL].contains(&roles), "{rpc:?}");
            // What people change is audited.
            let is_of_people = roles.contains(&Admin);
            assert!(
                !is_of_people || effect != Effect::Changes || audit == IsAudited::Yes,
                "{rpc:?}"
            );
            // A viewer changes nothing; a join token is exchanged by its bearer.
            let may_look = roles.contains(&Viewer) && *rpc != Rpc::ExchangeAccess;
            assert!(!may_look || effect != Effect::Changes, "{rpc:?}");
        }
    }
}
