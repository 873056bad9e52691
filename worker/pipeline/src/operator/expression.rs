//! Expressions over numbers: parsed once, then computed column by column.

/// Maximum number of nodes of an expression.
const NODES_MAX: usize = 1_000;
/// Maximum nesting depth of brackets and calls.
const DEPTH_MAX: usize = 50;

/// Operation of a node, applied to the results of the nodes before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Node {
    Number(f64),
    /// Index of a column name.
    Name(usize),
    One(One),
    Two(Two),
    Where,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum One {
    Negate,
    Not,
    Abs,
    Sign,
    Tanh,
    Exp,
    Log,
    Sqrt,
    Floor,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Two {
    Add,
    Subtract,
    Multiply,
    Divide,
    Min,
    Max,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    NotEqual,
    And,
    Or,
}

/// An expression in postfix order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expression {
    nodes: Vec<Node>,
    names: Vec<String>,
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors  Description and position of the error.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut reader = ExpressionReader {
            text,
            at: 0,
            depth: 0,
            expression: Self { nodes: vec![], names: vec![] },
        };
        reader.any()?;
        reader.skip();
        if reader.at < text.len() {
            return Err(reader.wrong("an operator or the end"));
        }
        Ok(reader.expression)
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Names of the columns used, each once.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }
}

struct ExpressionReader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    expression: Expression,
}

/// Operators by level, weakest binding first; within a level, longer signs precede their prefixes.
const LEVELS: [&[(&str, Two)]; 5] = [
    &[("or", Two::Or)],
    &[("and", Two::And)],
    &[
        ("<=", Two::LessOrEqual),
        (">=", Two::GreaterOrEqual),
        ("==", Two::Equal),
        ("!=", Two::NotEqual),
        ("<", Two::Less),
        (">", Two::Greater),
    ],
    &[("+", Two::Add), ("-", Two::Subtract)],
    &[("*", Two::Multiply), ("/", Two::Divide)],
];

/// Level of `not`: before a comparison.
const NOT_LEVEL: usize = 2;

const ONES: [(&str, One); 7] = [
    ("abs", One::Abs),
    ("sign", One::Sign),
    ("tanh", One::Tanh),
    ("exp", One::Exp),
    ("log", One::Log),
    ("sqrt", One::Sqrt),
    ("floor", One::Floor),
];

const TWOS: [(&str, Two); 2] = [("min", Two::Min), ("max", Two::Max)];

impl ExpressionReader<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn skip(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    fn wrong(&self, wanted: &str) -> String {
        let found: String = self.rest().chars().take(12).collect();
        let found = if found.is_empty() { "ends".to_owned() } else { format!("has `{found}`") };
        format!("the expression needs {wanted} at byte {}, but it {found} there", self.at)
    }

    fn push(&mut self, node: Node) -> Result<(), String> {
        if self.expression.nodes.len() == NODES_MAX {
            return Err(format!("the expression has more than {NODES_MAX} parts"));
        }
        self.expression.nodes.push(node);
        Ok(())
    }

    fn deeper<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        if self.depth == DEPTH_MAX {
            return Err(format!("the expression nests more than {DEPTH_MAX} deep"));
        }
        self.depth += 1;
        let read = read(self)?;
        self.depth -= 1;
        Ok(read)
    }

    fn any(&mut self) -> Result<(), String> {
        self.deeper(|reader| reader.level(0))
    }

    fn level(&mut self, level: usize) -> Result<(), String> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        // As in Python, `not` binds weaker than comparisons.
        if level == NOT_LEVEL && self.operator(&[("not", Two::And)]).is_some() {
            self.deeper(|reader| reader.level(NOT_LEVEL))?;
            return self.push(Node::One(One::Not));
        }
        self.level(level + 1)?;
        let mut is_first = true;
        while let Some(two) = self.operator(operators) {
            // Chained comparisons are rejected, because in Python they mean something else than in
            // sequence.
            if level == NOT_LEVEL && !is_first {
                let at = self.at;
                return Err(format!(
                    "the expression compares twice in a row before byte {at}: write `a < b and b < c`"
                ));
            }
            self.level(level + 1)?;
            self.push(Node::Two(two))?;
            is_first = false;
        }
        Ok(())
    }

    fn operator(&mut self, operators: &[(&str, Two)]) -> Option<Two> {
        self.skip();
        let rest = self.rest();
        let found = operators.iter().find(|(sign, _)| {
            let is_word = sign.starts_with(char::is_alphabetic);
            rest.strip_prefix(sign)
                .is_some_and(|behind| !is_word || !behind.starts_with(is_of_name))
        });
        let (sign, two) = found?;
        self.at += sign.len();
        Some(*two)
    }

    fn unary(&mut self) -> Result<(), String> {
        self.skip();
        if self.take("-") {
            self.deeper(Self::unary)?;
            return self.push(Node::One(One::Negate));
        }
        self.primary()
    }

    fn take(&mut self, sign: &str) -> bool {
        self.skip();
        let is_there = self.rest().starts_with(sign);
        self.at += if is_there { sign.len() } else { 0 };
        is_there
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.take(sign) { Ok(()) } else { Err(self.wrong(&format!("`{sign}`"))) }
    }

    fn primary(&mut self) -> Result<(), String> {
        if self.take("(") {
            self.any()?;
            return self.expect(")");
        }
        let rest = self.rest();
        if rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return self.number();
        }
        if let Some(quoted) = rest.strip_prefix('`') {
            let Some((name, _)) = quoted.split_once('`') else {
                return Err(self.wrong("a name between two `"));
            };
            let name = name.to_owned();
            self.at += name.len() + 2;
            return self.column(name);
        }
        let len = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        if len == 0 || matches!(&rest[..len], "and" | "or" | "not") {
            return Err(self.wrong("a number, a column or a function"));
        }
        let (name, from) = (rest[..len].to_owned(), self.at);
        self.at += len;
        if self.take("(") {
            return self.call(&name, from);
        }
        self.column(name)
    }

    fn column(&mut self, name: String) -> Result<(), String> {
        let known = self.expression.names.iter().position(|known| *known == name);
        let place = known.unwrap_or_else(|| {
            self.expression.names.push(name);
            self.expression.names.len() - 1
        });
        self.push(Node::Name(place))
    }

    fn number(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let mut len = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let exponent = rest[len..].strip_prefix(['e', 'E']);
        if let Some(exponent) = exponent {
            let signless = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            let digits = signless.find(|c: char| !c.is_ascii_digit()).unwrap_or(signless.len());
            if digits > 0 {
                len += 1 + exponent.len() - signless.len() + digits;
            }
        }
        let Ok(number) = rest[..len].parse::<f64>() else {
            return Err(self.wrong("a number"));
        };
        self.at += len;
        self.push(Node::Number(number))
    }

    /// Parses a call.
    /// - `from`: position of the name.
    fn call(&mut self, name: &str, from: usize) -> Result<(), String> {
        let mut count = 1;
        self.any()?;
        while self.take(",") {
            self.any()?;
            count += 1;
        }
        self.expect(")")?;
        let one = ONES.iter().find(|(known, _)| *known == name);
        let two = TWOS.iter().find(|(known, _)| *known == name);
        match (one, two, count) {
            (Some((_, one)), _, 1) => self.push(Node::One(*one)),
            (_, Some((_, two)), 2) => self.push(Node::Two(*two)),
            _ if name == "where" && count == 3 => self.push(Node::Where),
            (None, None, _) if name != "where" => Err(format!(
                "the expression calls `{name}` at byte {from}; there are abs, exp, floor, log, max, min, \
                 sign, sqrt, tanh and where"
            )),
            _ => {
                let takes = if one.is_some() { 1 } else { 3 - usize::from(two.is_some()) };
                Err(format!(
                    "the expression calls `{name}` at byte {from} with {count} values; it takes {takes}"
                ))
            }
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        Expression::parse(text).unwrap_err()
    }

    #[test]
    fn what_is_no_expression_is_told_where() {
        assert_eq!(
            wrong("1 +"),
            "the expression needs a number, a column or a function at byte 3, but it ends there"
        );
        assert_eq!(wrong("(1"), "the expression needs `)` at byte 2, but it ends there");
        assert_eq!(
            wrong("a b"),
            "the expression needs an operator or the end at byte 2, but it has `b` there"
        );
        assert_eq!(
            wrong("1 + cos(x)"),
            "the expression calls `cos` at byte 4; there are abs, exp, floor, log, max, min, sign, \
             sqrt, tanh and where"
        );
        assert_eq!(
            wrong("min(1)"),
            "the expression calls `min` at byte 0 with 1 values; it takes 2"
        );
        assert_eq!(
            wrong("where(1, 2)"),
            "the expression calls `where` at byte 0 with 2 values; it takes 3"
        );
        assert!(wrong("1.2.3").starts_with("the expression needs a number at byte 0"));
        for deep in ["(", "-", "not "] {
            assert_eq!(wrong(&deep.repeat(100_000)), "the expression nests more than 50 deep");
        }
        let long = wrong(&format!("1{}", "+1".repeat(2_000)));
        assert_eq!(long, "the expression has more than 1000 parts");
        assert_eq!(
            wrong("1 < 2 < 3"),
            "the expression compares twice in a row before byte 7: write `a < b and b < c`"
        );
        assert!(wrong("é + ☃").contains('☃'));
    }

    #[test]
    fn a_name_is_taken_once() {
        let expression = Expression::parse("where(order > 1, order, android * 2)").unwrap();
        assert_eq!(expression.names(), ["order", "android"]);
        let expression = Expression::parse("`image/height` / `image` + image").unwrap();
        assert_eq!(expression.names(), ["image/height", "image"]);
        assert!(wrong("`image/height").starts_with("the expression needs a name between two `"));
    }
}
