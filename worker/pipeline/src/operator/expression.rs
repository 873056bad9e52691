//! Expressions: parsed once, then computed column by column, or record by record by a filter.

use std::fmt;

const NODES_MAX: usize = 1_000;
/// Maximum nesting depth of brackets and calls.
const DEPTH_MAX: usize = 50;

/// User of an expression, which determines the operations that it may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// The operator `compute`: numbers in float64.
    Compute,
    /// A filter: also texts and exact integers.
    Filter,
}

/// Operation of a node, applied to the results of the nodes before it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Integer(i64),
    Number(f64),
    Text(String),
    /// Index of a column name.
    Name(usize),
    /// Index of the name of a column whose length is taken.
    Len(usize),
    One(One),
    Two(Two),
    Where,
    /// Membership of a value in this number of others.
    In(usize),
}

impl Node {
    /// Returns the error if a dialect does not have this operation.
    fn check(&self, dialect: Dialect) -> Result<(), String> {
        let lacks = match self {
            Self::Text(_) => "texts",
            Self::Len(_) => "`len`",
            Self::In(_) => "`in`",
            Self::Two(Two::Modulo) => "`%`",
            Self::Two(Two::FloorDivide) => "`//`",
            Self::One(One::Hash) => "`hash`",
            Self::Number(number) if dialect == Dialect::Filter && !number.is_finite() => {
                return Err("the expression has a number that float64 cannot hold".into());
            }
            _ => return Ok(()),
        };
        match dialect {
            Dialect::Compute => Err(format!("compute has no {lacks}; only a filter has")),
            Dialect::Filter => Ok(()),
        }
    }
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
    Hash,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Two {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    FloorDivide,
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
    pub(crate) fn parse(text: &str, dialect: Dialect) -> Result<Self, String> {
        let mut reader = ExpressionReader {
            text,
            dialect,
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

    /// Returns the parts that all have to hold, in their order.
    pub(crate) fn conjuncts(&self) -> Vec<String> {
        let (mut starts, mut stack): (Vec<usize>, Vec<usize>) = (vec![], vec![]);
        for (place, node) in self.nodes.iter().enumerate() {
            let operands = match node {
                Node::Integer(_) | Node::Number(_) | Node::Text(_) => 0,
                Node::Name(_) | Node::Len(_) => 0,
                Node::One(_) => 1,
                Node::Two(_) => 2,
                Node::Where => 3,
                Node::In(choices) => choices + 1,
            };
            let first = stack.split_off(stack.len() - operands).first().copied();
            stack.push(first.unwrap_or(place));
            starts.push(first.unwrap_or(place));
        }
        let (mut parts, mut last) = (vec![], self.nodes.len() - 1);
        while self.nodes[last] == Node::Two(Two::And) {
            parts.push(self.text_to(last - 1));
            last = starts[last - 1] - 1;
        }
        parts.push(self.text_to(last));
        parts.reverse();
        parts
    }

    /// Returns the canonical text of the part that ends with a node.
    pub(crate) fn text_to(&self, last: usize) -> String {
        let mut stack: Vec<(String, usize)> = vec![];
        for place in 0..=last {
            let printed = self.printed(place, &mut stack);
            stack.push(printed);
        }
        stack.pop().map_or_else(String::new, |(text, _)| text)
    }

    /// Returns text and level of a node, whose operands are taken from the stack.
    fn printed(&self, place: usize, stack: &mut Vec<(String, usize)>) -> (String, usize) {
        let is_negated = self.nodes.get(place + 1) == Some(&Node::One(One::Not));
        let is_choice = |place: usize| matches!(self.nodes[place], Node::In(_));
        let mut operand = |least: usize| {
            let (text, level) = stack.pop().unwrap_or_default();
            if level < least { format!("({text})") } else { text }
        };
        let call = |name: &str, values: &[String]| (format!("{name}({})", values.join(", ")), ATOM);
        match &self.nodes[place] {
            Node::Integer(integer) => (integer.to_string(), ATOM),
            Node::Number(number) => (format!("{number:?}"), ATOM),
            Node::Text(text) => {
                (format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")), ATOM)
            }
            Node::Name(name) => (self.printed_name(*name), ATOM),
            Node::Len(name) => call("len", &[self.printed_name(*name)]),
            Node::One(One::Negate) => (format!("-{}", operand(UNARY)), UNARY),
            // Printed with its choices.
            Node::One(One::Not) if place > 0 && is_choice(place - 1) => (operand(0), NOT_LEVEL),
            Node::One(One::Not) => (format!("not {}", operand(NOT_LEVEL)), NOT_LEVEL),
            Node::One(one) => {
                let name = ONES.iter().find(|(_, known)| known == one).map_or("", |(name, _)| name);
                call(name, &[operand(0)])
            }
            Node::Two(two) => {
                if let Some((name, _)) = TWOS.iter().find(|(_, known)| known == two) {
                    let second = operand(0);
                    return call(name, &[operand(0), second]);
                }
                let of_level = |operators: &[(&'static str, Two)]| {
                    operators.iter().find(|(_, known)| known == two).map(|(sign, _)| *sign)
                };
                let mut found = LEVELS.iter().map(|level| of_level(level)).enumerate();
                let (level, sign) = found
                    .find_map(|(level, sign)| sign.map(|sign| (level, sign)))
                    .unwrap_or_default();
                let second = operand(level + 1);
                let first = operand(level + usize::from(level == NOT_LEVEL));
                (format!("{first} {sign} {second}"), level)
            }
            Node::Where => {
                let (no, yes) = (operand(0), operand(0));
                call("where", &[operand(0), yes, no])
            }
            Node::In(count) => {
                let mut choices: Vec<_> = (0..*count).map(|_| operand(0)).collect();
                choices.reverse();
                let sign = if is_negated { "not in" } else { "in" };
                let value = operand(NOT_LEVEL + 1);
                (format!("{value} {sign} ({})", choices.join(", ")), NOT_LEVEL)
            }
        }
    }

    fn printed_name(&self, name: usize) -> String {
        let name = &self.names[name];
        let is_plain = name.chars().all(is_of_name)
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && !name.is_empty()
            && !is_word_operator(name);
        if is_plain { name.clone() } else { format!("`{name}`") }
    }
}

/// The canonical text: parsed, it gives the same expression.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text_to(self.nodes.len() - 1))
    }
}

struct ExpressionReader<'a> {
    text: &'a str,
    dialect: Dialect,
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
    &[("*", Two::Multiply), ("//", Two::FloorDivide), ("/", Two::Divide), ("%", Two::Modulo)],
];

/// Levels above those of [`LEVELS`]: a sign, and everything that binds stronger.
const UNARY: usize = LEVELS.len();
const ATOM: usize = UNARY + 1;

/// Level of `not`: before a comparison.
const NOT_LEVEL: usize = 2;

const ONES: [(&str, One); 8] = [
    ("abs", One::Abs),
    ("sign", One::Sign),
    ("tanh", One::Tanh),
    ("exp", One::Exp),
    ("log", One::Log),
    ("sqrt", One::Sqrt),
    ("floor", One::Floor),
    ("hash", One::Hash),
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
        node.check(self.dialect)?;
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
        if level == NOT_LEVEL && self.choice()? {
            is_first = false;
        }
        while let Some(two) = self.operator(operators) {
            // Chained comparisons are rejected: Python gives them another meaning.
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

    /// Parses `in (a, b)` or `not in (a, b)` behind a value, if it is there.
    fn choice(&mut self) -> Result<bool, String> {
        let from = self.at;
        let is_negated = self.operator(&[("not", Two::And)]).is_some();
        if self.operator(&[("in", Two::Or)]).is_none() {
            self.at = from;
            return Ok(false);
        }
        self.expect("(")?;
        let mut count = 0;
        while count == 0 || !self.take(")") {
            self.any()?;
            count += 1;
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        self.push(Node::In(count))?;
        if is_negated {
            self.push(Node::One(One::Not))?;
        }
        Ok(true)
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
        if rest.starts_with(['\'', '"']) {
            return self.literal();
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
        if len == 0 || is_word_operator(&rest[..len]) {
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
        let place = self.place_of(name);
        self.push(Node::Name(place))
    }

    fn place_of(&mut self, name: String) -> usize {
        let known = self.expression.names.iter().position(|known| *known == name);
        known.unwrap_or_else(|| {
            self.expression.names.push(name);
            self.expression.names.len() - 1
        })
    }

    /// Parses a text in single or double quotes.
    fn literal(&mut self) -> Result<(), String> {
        let mut characters = self.rest().char_indices();
        let quote = characters.next().map(|(_, quote)| quote);
        let mut text = String::new();
        while let Some((at, character)) = characters.next() {
            if Some(character) == quote {
                self.at += at + character.len_utf8();
                return self.push(Node::Text(text));
            }
            if character != '\\' {
                text.push(character);
                continue;
            }
            match characters.next() {
                Some((_, escaped @ ('\\' | '\'' | '"'))) => text.push(escaped),
                _ => {
                    self.at += at;
                    return Err(self.wrong(r#"`\\`, `\'` or `\"`"#));
                }
            }
        }
        Err(self.wrong("a text between two quotes"))
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
        let digits = &rest[..len];
        // 2^63 is exact as a float, and needed for the smallest integer.
        let is_large = digits.bytes().all(|byte| byte.is_ascii_digit())
            && !digits.parse().is_ok_and(|integer: u64| integer <= 1 << 63);
        let node = match (digits.parse(), digits.parse()) {
            (Ok(integer), _) => Node::Integer(integer),
            (_, Ok(_)) if is_large && self.dialect == Dialect::Filter => {
                return Err(self.wrong("an int64, or a float such as `1e19`"));
            }
            (_, Ok(number)) => Node::Number(number),
            _ => return Err(self.wrong("a number")),
        };
        self.at += len;
        self.push(node)
    }

    /// Parses the column of `len(column)` and the closing bracket.
    fn length(&mut self) -> Result<(), String> {
        let (before, from) = (self.expression.nodes.len(), self.at);
        self.deeper(Self::primary)?;
        let nodes = self.expression.nodes.split_off(before);
        let [Node::Name(name)] = nodes[..] else {
            self.at = from;
            return Err(self.wrong("a column"));
        };
        self.expect(")")?;
        self.push(Node::Len(name))
    }

    /// Parses a call.
    /// - `from`: position of the name.
    fn call(&mut self, name: &str, from: usize) -> Result<(), String> {
        if name == "len" && self.dialect == Dialect::Filter {
            return self.length();
        }
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
                "the expression calls `{name}` at byte {from}; there are {}",
                match self.dialect {
                    Dialect::Compute => {
                        "abs, exp, floor, log, max, min, sign, sqrt, tanh and where"
                    }
                    Dialect::Filter => {
                        "abs, exp, floor, hash, len, log, max, min, sign, sqrt, tanh and where"
                    }
                }
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

fn is_word_operator(word: &str) -> bool {
    matches!(word, "and" | "or" | "not")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        Expression::parse(text, Dialect::Compute).unwrap_err()
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
        let expression =
            Expression::parse("where(order > 1, order, android * 2)", Dialect::Compute).unwrap();
        assert_eq!(expression.names(), ["order", "android"]);
        let expression =
            Expression::parse("`image/height` / `image` + image", Dialect::Compute).unwrap();
        assert_eq!(expression.names(), ["image/height", "image"]);
        assert!(wrong("`image/height").starts_with("the expression needs a name between two `"));
    }
}
