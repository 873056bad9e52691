//! Paths of a spec's side tables, which its digest does not cover.

use shardfeed_table::Table;

use crate::operator::TableFault;
use crate::schema::RecordSpec;

impl RecordSpec {
    /// Uses the file at `path` for all tables with its content.
    /// - Returns true if an operator uses it.
    ///
    /// # Errors  The file is not a table.
    pub fn use_table(&mut self, path: &str) -> Result<bool, TableFault> {
        let digest = Table::open(path)?.digest().to_string();
        Ok(self.place_table(&digest, path))
    }

    /// Sets the path of the tables with this content; the file is opened later.
    /// - `digest`: 64 hex digits.
    /// - Returns true if an operator uses it.
    pub fn place_table(&mut self, digest: &str, path: &str) -> bool {
        let mut is_used = false;
        for operator in self.operators.iter_mut().chain(&mut self.measured) {
            if let Some(table) = operator.operation.table_mut()
                && table.digest.to_string() == digest
            {
                table.path = Some(path.to_owned());
                is_used = true;
            }
        }
        is_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Dtype;
    use crate::operator::{Lookup, Operation, Operator, TableRef};
    use crate::schema::Schema;

    #[test]
    fn a_table_whose_path_is_not_known_is_named() {
        let digest = "5".repeat(64);
        let lookup = Operator {
            output: "score".into(),
            operation: Operation::Lookup(Lookup {
                input: "record".into(),
                table: TableRef { digest: digest.parse().unwrap(), path: None },
                column: "score".into(),
                dtype: Dtype::Float32,
                shape: vec![],
                missing: None,
            }),
        };
        let mut spec = RecordSpec { operators: vec![lookup], ..RecordSpec::default() };
        let unnamed = Schema::new(spec.clone()).unwrap().open_tables().unwrap_err();
        assert_eq!(
            unnamed.to_string(),
            "the job looks things up in the table \
             5555555555555555555555555555555555555555555555555555555555555555, and its path is \
             unknown; name it with --table"
        );
        assert!(!spec.place_table(&"1".repeat(64), "/data/other.sft"));
        assert!(spec.place_table(&digest, "/data/scores.sft"));
        let schema = Schema::new(spec).unwrap();
        let paths: Vec<_> = schema.tables().map(|table| table.path.as_deref()).collect();
        assert_eq!(paths, [Some("/data/scores.sft")]);
    }
}
