use std::sync::Arc;

use super::{Schema, SchemaError};
use crate::record::Row;

/// Schemas of the shards of a dataset: one, or one for each source, with the same columns.
#[derive(Clone, Debug)]
pub struct ShardSchemas {
    /// First shard of each source, in ascending order, with its schema; at least one.
    sources: Arc<[(u32, Arc<Schema>)]>,
    /// Each schema once.
    schemas: Arc<[Arc<Schema>]>,
}

impl From<Arc<Schema>> for ShardSchemas {
    fn from(schema: Arc<Schema>) -> Self {
        Self { sources: [(0, Arc::clone(&schema))].into(), schemas: [schema].into() }
    }
}

impl ShardSchemas {
    /// Creates the schemas of a mixture.
    /// - `sources`: first shard of each source, and its schema; the first source begins with shard 0.
    ///
    /// # Errors  `OtherColumns`, `OtherCosts`.
    ///
    /// # Panics  There are no sources.
    pub fn new(sources: Vec<(u32, Arc<Schema>)>) -> Result<Self, SchemaError> {
        let mut schemas: Vec<Arc<Schema>> = vec![];
        for (_, schema) in &sources {
            if !schemas.iter().any(|known| Arc::ptr_eq(known, schema)) {
                schemas.first().map_or(Ok(()), |first| first.check_columns(schema))?;
                schemas.push(Arc::clone(schema));
            }
        }
        assert!(!schemas.is_empty(), "a mixture has a source");
        Ok(Self { sources: sources.into(), schemas: schemas.into() })
    }

    /// Returns the schema of the first source, which has the columns of all.
    pub fn first(&self) -> &Arc<Schema> {
        &self.schemas[0]
    }

    pub fn of(&self, shard: u32) -> &Arc<Schema> {
        let after = self.sources.partition_point(|(first, _)| *first <= shard);
        &self.sources[after.max(1) - 1].1
    }

    /// Returns the only schema, if all shards have the same.
    pub(crate) fn only(&self) -> Option<&Arc<Schema>> {
        (self.schemas.len() == 1).then(|| self.first())
    }

    /// Returns each schema once.
    pub fn all(&self) -> &[Arc<Schema>] {
        &self.schemas
    }

    /// Divides rows into runs of the same schema.
    pub(crate) fn runs<'r, 'a>(
        &self,
        rows: &'r [Row<'a>],
    ) -> impl Iterator<Item = (&Arc<Schema>, &'r [Row<'a>])> {
        let is_same = |left: &Row<'_>, right: &Row<'_>| {
            let (left, right) = (left.sample.shard, right.sample.shard);
            left == right || Arc::ptr_eq(self.of(left), self.of(right))
        };
        rows.chunk_by(is_same).map(|run| (self.of(run[0].sample.shard), run))
    }

    /// Most of [`Schema::fixed_row_bytes`].
    pub fn fixed_row_bytes(&self) -> usize {
        self.schemas.iter().map(|schema| schema.fixed_row_bytes()).max().unwrap_or(0)
    }

    /// Part of `budget_bytes` that operators may use for intermediate columns.
    pub fn made_bytes(&self, budget_bytes: u64) -> u64 {
        self.schemas.iter().map(|schema| schema.made_bytes(budget_bytes)).max().unwrap_or(0)
    }

    /// Limits the memory of all operators from now on, as [`Schema::bound_made`].
    pub fn bound_made(&self, bytes: u64) {
        let made = || self.schemas.iter().filter(|schema| !schema.program().is_empty());
        let schemas = made().count().max(1) as u64;
        made().for_each(|schema| schema.bound_made(bytes / schemas));
    }
}
