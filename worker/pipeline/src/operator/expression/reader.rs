//! The parser of expressions.

use super::{
    Dialect, LEVELS, Leaf, NOT_LEVEL, Node, ONES, One, TWOS, Two, is_of_name, is_word_operator,
    place_of,
};

/// Maximum number of nodes.
const NODES_MAX: usize = 1_000;

/// Maximum nesting depth of brackets and calls.
const DEPTH_MAX: usize = 50;

pub(super) struct ExpressionReader<'a> {
    text: &'a str,
    dialect: Dialect,
    at: usize,
    depth: usize,
    /// Number of nodes.
    parts: usize,
    leaves: Vec<Leaf>,
}

impl<'a> ExpressionReader<'a> {
    /// Returns the root and the leaves of an expression.
    pub(super) fn read(text: &'a str, dialect: Dialect) -> Result<(Node, Vec<Leaf>), String> {
        let mut reader = Self { text, dialect, at: 0, depth: 0, parts: 0, leaves: vec![] };
        let root = reader.any()?;
        reader.skip();
        if reader.at < text.len() {
            return Err(reader.wrong("an operator or the end"));
        }
        Ok((root, reader.leaves))
    }

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

    /// Counts and checks a node.
    fn node(&mut self, node: Node) -> Result<Node, String> {
        if self.parts == NODES_MAX {
            return Err(format!("the expression has more than {NODES_MAX} parts"));
        }
        node.check(self.dialect)?;
        self.parts += 1;
        Ok(node)
    }

    fn deeper(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<Node, String>,
    ) -> Result<Node, String> {
        if self.depth == DEPTH_MAX {
            return Err(format!("the expression nests more than {DEPTH_MAX} deep"));
        }
        self.depth += 1;
        let read = read(self)?;
        self.depth -= 1;
        Ok(read)
    }

    fn any(&mut self) -> Result<Node, String> {
        self.deeper(|reader| reader.level(0))
    }

    fn level(&mut self, level: usize) -> Result<Node, String> {
        let Some(operators) = LEVELS.get(level) else {
            return self.unary();
        };
        // As in Python, `not` binds weaker than comparisons.
        if level == NOT_LEVEL && self.operator(&[("not", Two::And)]).is_some() {
            let negated = self.deeper(|reader| reader.level(NOT_LEVEL))?;
            return self.node(Node::One(One::Not, Box::new(negated)));
        }
        let mut node = self.level(level + 1)?;
        let mut is_first = true;
        if level == NOT_LEVEL {
            (node, is_first) = self.choice(node)?;
        }
        while let Some(two) = self.operator(operators) {
            // Chained comparisons are rejected: Python gives them another meaning.
            if level == NOT_LEVEL && !is_first {
                let at = self.at;
                return Err(format!(
                    "the expression compares twice in a row before byte {at}: write `a < b and b < c`"
                ));
            }
            let second = self.level(level + 1)?;
            node = self.node(Node::Two(two, Box::new([node, second])))?;
            is_first = false;
        }
        Ok(node)
    }

    /// Parses `in (a, b)` or `not in (a, b)` behind a value. Returns the value and true if there is none.
    fn choice(&mut self, value: Node) -> Result<(Node, bool), String> {
        let from = self.at;
        let is_negated = self.operator(&[("not", Two::And)]).is_some();
        if self.operator(&[("in", Two::Or)]).is_none() {
            self.at = from;
            return Ok((value, true));
        }
        self.expect("(")?;
        let mut choices = vec![];
        while choices.is_empty() || !self.take(")") {
            choices.push(self.any()?);
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        let mut node = self.node(Node::In(Box::new(value), choices))?;
        if is_negated {
            node = self.node(Node::One(One::Not, Box::new(node)))?;
        }
        Ok((node, false))
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

    fn unary(&mut self) -> Result<Node, String> {
        self.skip();
        if self.take("-") {
            let negated = self.deeper(Self::unary)?;
            return self.node(Node::One(One::Negate, Box::new(negated)));
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

    fn primary(&mut self) -> Result<Node, String> {
        if self.take("(") {
            let inner = self.any()?;
            self.expect(")")?;
            return Ok(inner);
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

    fn column(&mut self, name: String) -> Result<Node, String> {
        self.leaf(&Leaf { name, is_length: false })
    }

    fn leaf(&mut self, leaf: &Leaf) -> Result<Node, String> {
        let leaf = place_of(leaf, &mut self.leaves);
        self.node(Node::Leaf(leaf))
    }

    /// Parses a text in single or double quotes.
    fn literal(&mut self) -> Result<Node, String> {
        let mut characters = self.rest().char_indices();
        let quote = characters.next().map(|(_, quote)| quote);
        let mut text = String::new();
        while let Some((at, character)) = characters.next() {
            if Some(character) == quote {
                self.at += at + character.len_utf8();
                return self.node(Node::Text(text));
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

    fn number(&mut self) -> Result<Node, String> {
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
        self.node(node)
    }

    /// Parses the column of `len(column)` and the closing bracket.
    fn length(&mut self) -> Result<Node, String> {
        let (parts, leaves, from) = (self.parts, self.leaves.len(), self.at);
        let name = match self.deeper(Self::primary)? {
            Node::Leaf(leaf) if !self.leaves[leaf].is_length => self.leaves[leaf].name.clone(),
            _ => {
                self.at = from;
                return Err(self.wrong("a column"));
            }
        };
        // The column itself is no part.
        self.parts = parts;
        self.leaves.truncate(leaves);
        self.expect(")")?;
        self.leaf(&Leaf { name, is_length: true })
    }

    /// Parses a call.
    /// - `from`: position of the name.
    fn call(&mut self, name: &str, from: usize) -> Result<Node, String> {
        if name == "len" && self.dialect == Dialect::Filter {
            return self.length();
        }
        let mut values = vec![self.any()?];
        while self.take(",") {
            values.push(self.any()?);
        }
        self.expect(")")?;
        let one = ONES.iter().find(|(known, _)| *known == name);
        let two = TWOS.iter().find(|(known, _)| *known == name);
        match (one, two, values.len()) {
            (Some((_, one)), _, 1) => self.node(Node::One(*one, Box::new(values.remove(0)))),
            (_, Some((_, two)), 2) => self.node(Node::Two(*two, operands(values))),
            _ if name == "where" && values.len() == 3 => self.node(Node::Where(operands(values))),
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
            (_, _, count) => {
                let takes = if one.is_some() { 1 } else { 3 - usize::from(two.is_some()) };
                Err(format!(
                    "the expression calls `{name}` at byte {from} with {count} values; it takes {takes}"
                ))
            }
        }
    }
}

fn operands<const COUNT: usize>(values: Vec<Node>) -> Box<[Node; COUNT]> {
    values.try_into().expect("the values were counted")
}
