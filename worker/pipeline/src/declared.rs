//! What was declared of records, from what a job's identity says of it.

use serde::de::DeserializeOwned;
use shardfeed_table::Table;
use shardfeed_tfrecord::example::FeatureSpec;

use crate::column::{ParseSpec, RecordSpec, Schema};
use crate::operator::{Operation, Operator, TableFault};

impl RecordSpec {
    /// Takes the file at `path` for the tables of this content, whose places no identity says.
    /// - Returns whether an operator looks things up in it.
    ///
    /// # Errors  It is no table.
    pub fn use_table(&mut self, path: &str) -> Result<bool, TableFault> {
        let found = Table::open(path)?.digest();
        let mut is_used = false;
        for operator in &mut self.operators {
            if let Operation::Lookup { table, .. } = &mut operator.operation
                && table.digest == found
            {
                table.path = Some(path.to_owned());
                is_used = true;
            }
        }
        Ok(is_used)
    }

    /// What a job's identity declares; `None` if it is of another version of this software.
    pub fn of_identity(operators: &str) -> Option<Self> {
        let mut line = Line(operators);
        let mut spec = Self { parse: None, operators: vec![], outputs: None };
        let parse = line.word()?.split_once('/')?.0;
        match parse {
            "raw" => {}
            "parse_example" => spec.parse = Some(ParseSpec::Example(line.json()?)),
            "parse_sequence_example" => {
                let (context, lists): (Vec<FeatureSpec>, _) = (line.json()?, line.json()?);
                spec.parse = Some(ParseSpec::Sequence { context, lists });
            }
            _ => return None,
        }
        while let Some(rest) = line.0.strip_prefix("; ") {
            line.0 = rest;
            if let Some(rest) = rest.strip_prefix("outputs ") {
                line.0 = rest;
                spec.outputs = Some(line.json()?);
                continue;
            }
            spec.operators.push(line.json::<Operator>()?);
            line.word()?;
        }
        // Whatever was not understood would say something else now.
        let schema = Schema::new(spec.clone()).ok()?;
        (line.0.is_empty() && schema.operators() == operators).then_some(spec)
    }
}

/// What is left of a line.
struct Line<'a>(&'a str);

impl<'a> Line<'a> {
    /// Up to the next blank or `;`, which is not taken.
    fn word(&mut self) -> Option<&'a str> {
        let end = self.0.find([' ', ';']).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then_some(word)
    }

    /// A value in JSON.
    fn json<T: DeserializeOwned>(&mut self) -> Option<T> {
        let text = self.0.trim_start();
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<T>();
        let value = values.next()?.ok()?;
        self.0 = &text[values.byte_offset()..];
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use shardfeed_tfrecord::example::{DType, DefaultValue, Feature};

    use super::*;
    use crate::dtype::Dtype;
    use crate::operator::TableRef;

    #[test]
    fn where_a_table_lies_is_no_part_of_a_job() {
        let digest = "5".repeat(64).parse().unwrap();
        let lookup = |path| Operator {
            output: "score".into(),
            operation: Operation::Lookup {
                input: "record".into(),
                table: TableRef { digest, path },
                column: "score".into(),
                dtype: Dtype::Float32,
                shape: vec![],
                missing: Some(-1.0),
            },
        };
        let of = |path| RecordSpec { parse: None, operators: vec![lookup(path)], outputs: None };
        let schema = Schema::new(of(Some("/data/scores.sft".into()))).unwrap();
        assert!(!schema.operators().contains("/data"), "{}", schema.operators());
        assert!(schema.spec_json().unwrap().contains("/data/scores.sft"));
        assert_eq!(RecordSpec::of_identity(schema.operators()), Some(of(None)));
        let unnamed = Schema::new(of(None)).unwrap().open_tables().unwrap_err();
        assert_eq!(
            unnamed.to_string(),
            "the job looks things up in the table \
             5555555555555555555555555555555555555555555555555555555555555555, and where it lies \
             is not said; name it with --table"
        );
    }

    #[test]
    fn what_a_job_says_declares_the_same() {
        let default = Some(DefaultValue::Float32(vec![0.1]));
        let feature = Feature::FixedLen { dtype: DType::Float32, shape: vec![], default };
        let id = FeatureSpec { name: "a; b".into(), feature };
        let operation = Operation::Cast { input: "a; b".into(), dtype: Dtype::Int64 };
        let cast = Operator { output: "c".into(), operation };
        let parse = Some(ParseSpec::Example(vec![id]));
        let whole = RecordSpec {
            parse: parse.clone(),
            operators: vec![cast],
            outputs: Some(vec!["c".into()]),
        };
        for spec in [
            RecordSpec { parse: None, operators: vec![], outputs: None },
            RecordSpec { parse, operators: vec![], outputs: None },
            whole,
        ] {
            let schema = Schema::new(spec.clone()).unwrap();
            assert_eq!(RecordSpec::of_identity(schema.operators()), Some(spec));
        }
        for other in ["", "raw", "raw/2", "raw/1; {}", "parse_example/1 [", "jpeg/1 {}"] {
            assert_eq!(RecordSpec::of_identity(other), None, "{other}");
        }
    }
}
