//! Reports of corrupt records to the coordinator.

use shardfeed_plan::Digest;
use shardfeed_proto::ErrorKind;
use shardfeed_proto::coordinator::v1 as wire;
use shardfeed_reader::Skipped;

use super::SharedSession;

impl SharedSession {
    /// Queues corrupt records that the coordinator does not know for a report.
    /// - `mixture`: digest of the mixture whose shards the samples name, if the job has one.
    pub(crate) fn tell_skipped(&self, job: &str, mixture: Option<Digest>, skipped: &[Skipped]) {
        if skipped.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let skips = state.skipped.entry(job.to_owned()).or_default();
        skipped.iter().for_each(|skipped| skips.add(mixture, skipped));
        drop(state);
        self.wake.notify_one();
    }

    /// Makes one report for each job with unreported records; a failed one is repeated later.
    /// - Returns true if more are to be reported at once.
    pub(super) async fn report_skipped(&self, session: u64) -> bool {
        let reports: Vec<_> = {
            let state = self.state.lock();
            let reports =
                state.skipped.iter().map(|(job, skips)| (job.clone(), skips.next_report()));
            reports.filter(|(_, (_, records))| !records.is_empty()).collect()
        };
        let mut has_more = false;
        for (job, (mixture, records)) in reports {
            let request = wire::ReportSkippedRequest {
                context: None,
                session,
                job,
                records,
                mixture: mixture.map_or(vec![], |digest| digest.as_bytes().to_vec()),
            };
            let result = self.coordinator.once(&request).await;
            let wire::ReportSkippedRequest { job, records, .. } = request;
            match result {
                Ok(wire::ReportSkippedResponse {}) => {
                    let mut state = self.state.lock();
                    let skips = state.skipped.entry(job).or_default();
                    has_more |= skips.acknowledged(mixture, &records);
                }
                Err(error) => {
                    tracing::debug!(job, %error, "skipped records were not reported yet");
                    if error.kind == ErrorKind::NotFound {
                        // The job was removed, so its records are no longer needed.
                        self.state.lock().skipped.remove(&job);
                    }
                }
            }
        }
        has_more
    }
}
