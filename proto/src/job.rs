//! Converts the order's types from their messages, with validation, and back.

use shardfeed_plan::{
    DatasetStage, DatasetVersion, Digest, Intent, JobIdentity, JobMixture, LEFT_OUT_MAX, LeftOut,
    MixtureError, Mode, ORDER_VERSION, PlanError, Records, SEGMENTS_MAX, Segment, Shuffle, Steps,
    Tail,
};

use crate::common::v1 as wire;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMessage {
    #[error("the message lacks `{0}`")]
    Missing(&'static str),
    #[error("`{field}` has {len} bytes, a digest has 32")]
    Digest { field: &'static str, len: usize },
    #[error("`{field}` has {len} entries; 1 to {most} are allowed")]
    Length { field: &'static str, len: usize, most: usize },
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Mixture(#[from] MixtureError),
}

pub fn digest_from(field: &'static str, bytes: &[u8]) -> Result<Digest, InvalidMessage> {
    let len = bytes.len();
    let bytes = bytes.try_into().map_err(|_| InvalidMessage::Digest { field, len })?;
    Ok(Digest::from_bytes(bytes))
}

pub fn identity_from(message: Option<wire::JobIdentity>) -> Result<JobIdentity, InvalidMessage> {
    let message = message.ok_or(InvalidMessage::Missing("identity"))?;
    let order = message.order_version;
    if order != ORDER_VERSION {
        return Err(PlanError::OtherOrderVersion { found: order }.into());
    }
    let tail = match message.tail() {
        wire::Tail::Drop => Tail::Drop,
        wire::Tail::Pad => Tail::Pad,
        wire::Tail::Uneven => Tail::Uneven,
        wire::Tail::Unspecified => return Err(InvalidMessage::Missing("tail")),
    };
    let shuffle = Shuffle {
        digest: digest_from("order_digest", &message.order_digest)?,
        seed: message.seed,
        enabled: message.shuffle,
        window: message.window,
        interleave: message.interleave,
        block_length: message.block_length,
    };
    shuffle.validate()?;
    Segment::start(message.lanes, message.lanes, 1)?;
    let content = digest_from("content_digest", &message.content_digest)?;
    let wire::JobIdentity { lanes, operators, decoder, mode, record_spec, .. } = message;
    let records = match operators.is_empty() {
        true => Records::RecordSpec(digest_from("record_spec", &record_spec)?),
        false => Records::Operators(operators),
    };
    let mode = match wire::Mode::try_from(mode) {
        // Older senders do not set the mode.
        Ok(wire::Mode::Deterministic | wire::Mode::Unspecified) => Mode::Deterministic,
        Ok(wire::Mode::Dynamic) => Mode::Dynamic,
        // Treating it as another mode would make it another job.
        Err(_) => return Err(InvalidMessage::Missing("mode")),
    };
    mode.check_tail(tail)?;
    Ok(JobIdentity { order, content, shuffle, lanes, tail, mode, records, decoder })
}

pub fn identity_to(identity: &JobIdentity) -> wire::JobIdentity {
    let Shuffle { digest, seed, enabled, window, interleave, block_length } = &identity.shuffle;
    let tail = match identity.tail {
        Tail::Drop => wire::Tail::Drop,
        Tail::Pad => wire::Tail::Pad,
        Tail::Uneven => wire::Tail::Uneven,
    };
    let mode = match identity.mode {
        Mode::Deterministic => wire::Mode::Deterministic,
        Mode::Dynamic => wire::Mode::Dynamic,
    };
    let (record_spec, operators) = match &identity.records {
        Records::RecordSpec(digest) => (digest.as_bytes().to_vec(), String::new()),
        Records::Operators(line) => (vec![], line.clone()),
    };
    wire::JobIdentity {
        seed: *seed,
        shuffle: *enabled,
        window: *window,
        interleave: *interleave,
        block_length: *block_length,
        lanes: identity.lanes,
        tail: tail.into(),
        operators,
        decoder: identity.decoder.clone(),
        mode: mode.into(),
        record_spec,
        order_version: identity.order,
        order_digest: digest.as_bytes().to_vec(),
        content_digest: identity.content.as_bytes().to_vec(),
    }
}

/// Converts a job's mixture from its message, and checks it.
pub fn mixture_from(message: wire::JobMixture) -> Result<JobMixture, InvalidMessage> {
    use wire::job_mixture::{Stage, Version};
    let version = |message: Version| {
        let Version { name, dataset, samples, content, order_digest, record_spec } = message;
        let content = digest_from("content", &content)?;
        let order_digest = digest_from("order_digest", &order_digest)?;
        let record_spec = (!record_spec.is_empty()).then_some(record_spec);
        let record_spec = record_spec.map(|spec| digest_from("record_spec", &spec)).transpose()?;
        let version = DatasetVersion { name, dataset, content, order_digest, samples, record_spec };
        Ok::<_, InvalidMessage>(version)
    };
    let stage = |message: Stage| {
        let Stage { first_epoch, versions, counts } = message;
        if versions.len() != counts.len() {
            return Err(InvalidMessage::Missing("counts"));
        }
        let counts = versions.into_iter().zip(counts).collect();
        Ok::<_, InvalidMessage>(DatasetStage { first_epoch, counts })
    };
    let mixture = JobMixture {
        versions: message.versions.into_iter().map(version).collect::<Result<_, _>>()?,
        stages: message.stages.into_iter().map(stage).collect::<Result<_, _>>()?,
    };
    mixture.mixture()?;
    Ok(mixture)
}

pub fn mixture_to(mixture: &JobMixture) -> wire::JobMixture {
    let version = |version: &DatasetVersion| wire::job_mixture::Version {
        name: version.name.clone(),
        dataset: version.dataset.clone(),
        content: version.content.as_bytes().to_vec(),
        order_digest: version.order_digest.as_bytes().to_vec(),
        samples: version.samples,
        record_spec: version.record_spec.map_or_else(Vec::new, |spec| spec.as_bytes().to_vec()),
    };
    let stage = |stage: &DatasetStage| wire::job_mixture::Stage {
        first_epoch: stage.first_epoch,
        versions: stage.counts.iter().map(|(version, _)| *version).collect(),
        counts: stage.counts.iter().map(|(_, count)| *count).collect(),
    };
    wire::JobMixture {
        versions: mixture.versions.iter().map(version).collect(),
        stages: mixture.stages.iter().map(stage).collect(),
    }
}

pub fn segments_from(messages: Vec<wire::Segment>) -> Result<Vec<Segment>, InvalidMessage> {
    let (len, most) = (messages.len(), SEGMENTS_MAX);
    if len == 0 || len > most {
        return Err(InvalidMessage::Length { field: "segments", len, most });
    }
    let segment = |message: wire::Segment| {
        let wire::Segment { lanes, global_batch, steps, steps_of_rank } = message;
        let steps = match steps_of_rank.is_empty() {
            true => Steps::All(steps),
            false => Steps::PerRank(steps_of_rank),
        };
        Segment::start(lanes, global_batch, 1)?;
        Ok(Segment { lanes, global_batch, steps })
    };
    messages.into_iter().map(segment).collect()
}

pub fn segments_to(segments: &[Segment]) -> Vec<wire::Segment> {
    let segment = |segment: &Segment| {
        let (steps, steps_of_rank) = match &segment.steps {
            Steps::All(steps) => (*steps, vec![]),
            Steps::PerRank(steps) => (0, steps.clone()),
        };
        let Segment { lanes, global_batch, .. } = *segment;
        wire::Segment { lanes, global_batch, steps, steps_of_rank }
    };
    segments.iter().map(segment).collect()
}

/// Converts the steps that were left out from their messages.
pub fn left_out_from(messages: Vec<wire::LeftOut>) -> Result<LeftOut, InvalidMessage> {
    let (len, most) = (messages.len(), LEFT_OUT_MAX);
    if len > most {
        return Err(InvalidMessage::Length { field: "left_out", len, most });
    }
    let range = |wire::LeftOut { first, end }| (first, end);
    Ok(LeftOut::new(messages.into_iter().map(range).collect()))
}

pub fn left_out_to(left_out: &LeftOut) -> Vec<wire::LeftOut> {
    let range = |&(first, end): &(u64, u64)| wire::LeftOut { first, end };
    left_out.ranges().iter().map(range).collect()
}

pub fn intent_from(message: Option<wire::Intent>) -> Result<Intent, InvalidMessage> {
    use wire::intent::{Kind, Move, Reconnect, Start};
    let kind = message.and_then(|intent| intent.kind).ok_or(InvalidMessage::Missing("intent"))?;
    Ok(match kind {
        Kind::Start(Start { state_generation, epoch, segments, reshard: is_reshard }) => {
            let segments = segments_from(segments)?;
            Intent::Start { state_generation, epoch, segments, is_reshard }
        }
        Kind::Move(Move { from, epoch, segments }) => {
            Intent::Move { from, epoch, segments: segments_from(segments)? }
        }
        Kind::Reconnect(Reconnect { generation, epoch, step }) => {
            Intent::Reconnect { generation, epoch, step }
        }
    })
}

pub fn intent_to(intent: &Intent) -> wire::Intent {
    use wire::intent::{Kind, Move, Reconnect, Start};
    let kind = match intent {
        Intent::Start { state_generation, epoch, segments, is_reshard } => Kind::Start(Start {
            state_generation: *state_generation,
            epoch: *epoch,
            segments: segments_to(segments),
            reshard: *is_reshard,
        }),
        Intent::Move { from, epoch, segments } => {
            Kind::Move(Move { from: *from, epoch: *epoch, segments: segments_to(segments) })
        }
        Intent::Reconnect { generation, epoch, step } => {
            Kind::Reconnect(Reconnect { generation: *generation, epoch: *epoch, step: *step })
        }
    };
    wire::Intent { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_what_is_believed() {
        let shuffle = Shuffle {
            digest: Digest::from_bytes([3; 32]),
            seed: 7,
            enabled: true,
            window: 10,
            interleave: 2,
            block_length: 1,
        };
        let (records, decoder) = (Records::Operators("raw/1".into()), "none".to_owned());
        let identity = JobIdentity {
            order: ORDER_VERSION,
            content: Digest::from_bytes([4; 32]),
            shuffle,
            lanes: 4,
            tail: Tail::Uneven,
            mode: Mode::Deterministic,
            records,
            decoder,
        };
        assert_eq!(identity_from(Some(identity_to(&identity))), Ok(identity.clone()));
        let records = Records::RecordSpec(Digest::from_bytes([9; 32]));
        let identity = JobIdentity { records, ..identity };
        assert_eq!(identity_from(Some(identity_to(&identity))), Ok(identity.clone()));
        let lacking = wire::JobIdentity { record_spec: vec![], ..identity_to(&identity) };
        assert!(matches!(identity_from(Some(lacking)), Err(InvalidMessage::Digest { .. })));
        // Of a job of an earlier release, or from a process of one.
        let earlier = JobIdentity { order: 0, ..identity.clone() };
        let refused = PlanError::OtherOrderVersion { found: 0 };
        assert_eq!(identity_from(Some(identity_to(&earlier))), Err(refused.into()));
        let dynamic = JobIdentity { mode: Mode::Dynamic, ..identity };
        assert_eq!(identity_from(Some(identity_to(&dynamic))), Ok(dynamic.clone()));
        let equal = JobIdentity { tail: Tail::Pad, ..dynamic.clone() };
        let refused = PlanError::DynamicTail { tail: Tail::Pad };
        assert_eq!(identity_from(Some(identity_to(&equal))), Err(refused.into()));
        let unknown = wire::JobIdentity { mode: 77, ..identity_to(&dynamic) };
        assert_eq!(identity_from(Some(unknown)), Err(InvalidMessage::Missing("mode")));
        let segments = vec![
            Segment { lanes: 2, global_batch: 4, steps: Steps::PerRank(vec![1, 2]) },
            Segment { lanes: 4, global_batch: 8, steps: Steps::All(3) },
        ];
        for intent in [
            Intent::Start {
                state_generation: Some(0),
                epoch: 1,
                segments: segments.clone(),
                is_reshard: true,
            },
            Intent::Move { from: 3, epoch: 0, segments },
            Intent::Reconnect { generation: 1, epoch: 2, step: 3 },
        ] {
            assert_eq!(intent_from(Some(intent_to(&intent))), Ok(intent));
        }
        let left_out = LeftOut::new(vec![(1, 3), (5, 6)]);
        assert_eq!(left_out_from(left_out_to(&left_out)), Ok(left_out));
        assert!(left_out_from(vec![wire::LeftOut::default(); LEFT_OUT_MAX + 1]).is_err());
    }

    #[test]
    fn what_makes_no_sense_is_not() {
        assert_eq!(identity_from(None), Err(InvalidMessage::Missing("identity")));
        assert!(segments_from(vec![]).is_err());
        assert!(segments_from(vec![wire::Segment::default()]).is_err());
        let error = digest_from("content", &[1, 2]).unwrap_err().to_string();
        assert_eq!(error, "`content` has 2 bytes, a digest has 32");
    }
}
