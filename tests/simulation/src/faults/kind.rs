//! The kinds of faults.

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // named for the fault; `strike` shows how it works
pub enum Fault {
    KillWorker,
    KillRouter,
    KillWorkerAtAnAwait,
    KillRouterAtAnAwait,
    PowerLost,
    StopProcess,
    EngineStuck,
    EngineSlow,
    StepFails,
    Drain,
    OtherWeights,
    Cut,
    Partition,
    OneWay,
    Abused,
    EtcdAway,
    EtcdCompacts,
    EtcdWiped,
    EtcdDeaf,
    LeasesEnd,
}

impl Fault {
    /// All kinds of faults.
    pub const ALL: [Self; 20] = [
        Self::KillWorker,
        Self::KillRouter,
        Self::KillWorkerAtAnAwait,
        Self::KillRouterAtAnAwait,
        Self::PowerLost,
        Self::StopProcess,
        Self::EngineStuck,
        Self::EngineSlow,
        Self::StepFails,
        Self::Drain,
        Self::OtherWeights,
        Self::Cut,
        Self::Partition,
        Self::OneWay,
        Self::Abused,
        Self::EtcdAway,
        Self::EtcdCompacts,
        Self::EtcdWiped,
        Self::EtcdDeaf,
        Self::LeasesEnd,
    ];
}
