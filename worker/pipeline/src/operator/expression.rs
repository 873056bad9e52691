//! Expressions: parsed once, then computed for many rows at a time.

mod operand;
mod reader;

use std::fmt;

pub(crate) use operand::Operand;
use reader::ExpressionReader;

/// Rows per block: intermediate values stay in the processor's cache.
pub(crate) const BLOCK: usize = 512;

/// User of an expression, which determines the operations that it may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// The operator `compute`: numbers in float64.
    Compute,
    /// A filter: also texts and exact integers.
    Filter,
}

/// Operation, and the parts of an expression that it is applied to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Integer(i64),
    Number(f64),
    Text(String),
    /// Index of a leaf of the expression.
    Leaf(usize),
    One(One, Box<Node>),
    Two(Two, Box<[Node; 2]>),
    /// A condition, and the values where it holds and where it does not.
    Where(Box<[Node; 3]>),
    /// Membership of a value in others.
    In(Box<Node>, Vec<Node>),
}

/// A column of an expression: its values, or their number in each row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) name: String,
    pub(crate) is_length: bool,
}

impl Node {
    /// Returns the error if a dialect does not have this operation.
    fn check(&self, dialect: Dialect) -> Result<(), String> {
        let lacks = match self {
            Self::Text(_) => "texts",
            Self::In(..) => "`in`",
            Self::Two(Two::Modulo, _) => "`%`",
            Self::Two(Two::FloorDivide, _) => "`//`",
            Self::One(One::Hash, _) => "`hash`",
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

    /// Returns the values of some rows: of all of them node by node, which is several times faster than
    /// row by row.
    /// - `leaf`: values of a constant or of a leaf.
    pub(crate) fn values<'n, V: Operand>(&'n self, leaf: &impl Fn(&'n Self) -> Vec<V>) -> Vec<V> {
        match self {
            Self::Integer(_) | Self::Number(_) | Self::Text(_) | Self::Leaf(_) => leaf(self),
            Self::One(one, operand) => {
                let mut values = operand.values(leaf);
                values.iter_mut().for_each(|value| *value = value.apply(*one));
                values
            }
            Self::Two(two, operands) => {
                let [first, second] = &**operands;
                let mut values = first.values(leaf);
                for (value, other) in values.iter_mut().zip(second.values(leaf)) {
                    *value = value.combine(*two, other);
                }
                values
            }
            Self::Where(operands) => {
                let [holds, yes, no] = &**operands;
                let (holds, mut values) = (holds.values(leaf), yes.values(leaf));
                for ((value, no), holds) in values.iter_mut().zip(no.values(leaf)).zip(holds) {
                    if !holds.is_true() {
                        *value = no;
                    }
                }
                values
            }
            Self::In(operand, choices) => {
                let mut values = operand.values(leaf);
                let choices: Vec<Vec<V>> = choices.iter().map(|one| one.values(leaf)).collect();
                for (row, value) in values.iter_mut().enumerate() {
                    *value = V::truth(choices.iter().any(|choice| value.equals(choice[row])));
                }
                values
            }
        }
    }

    /// Returns the parts that all have to hold, in their order.
    fn conjuncts(&self) -> Vec<&Self> {
        match self {
            Self::Two(Two::And, operands) => {
                let [first, last] = &**operands;
                let mut parts = first.conjuncts();
                parts.push(last);
                parts
            }
            _ => vec![self],
        }
    }

    /// Replaces leaves of an expression by those of another one, to which they are added.
    fn move_leaves(&mut self, from: &[Leaf], to: &mut Vec<Leaf>) {
        match self {
            Self::Integer(_) | Self::Number(_) | Self::Text(_) => {}
            Self::Leaf(leaf) => *leaf = place_of(&from[*leaf], to),
            Self::One(_, operand) => operand.move_leaves(from, to),
            Self::Two(_, operands) => operands.iter_mut().for_each(|one| one.move_leaves(from, to)),
            Self::Where(operands) => operands.iter_mut().for_each(|one| one.move_leaves(from, to)),
            Self::In(operand, choices) => {
                operand.move_leaves(from, to);
                choices.iter_mut().for_each(|one| one.move_leaves(from, to));
            }
        }
    }
}

/// Returns the index of a leaf, which is added if it is new.
fn place_of(leaf: &Leaf, leaves: &mut Vec<Leaf>) -> usize {
    let known = leaves.iter().position(|known| known == leaf);
    known.unwrap_or_else(|| {
        leaves.push(leaf.clone());
        leaves.len() - 1
    })
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

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expression {
    root: Node,
    leaves: Vec<Leaf>,
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors  Description and position of the error.
    pub(crate) fn parse(text: &str, dialect: Dialect) -> Result<Self, String> {
        let (root, leaves) = ExpressionReader::read(text, dialect)?;
        Ok(Self { root, leaves })
    }

    pub(crate) fn root(&self) -> &Node {
        &self.root
    }

    /// Columns and lengths used, each once, in the order of the text.
    pub(crate) fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Names of the columns used, each once.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = vec![];
        for Leaf { name, .. } in &self.leaves {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Returns the parts that all have to hold, in their order.
    pub(crate) fn conjuncts(&self) -> Vec<Self> {
        let part = |node: &Node| {
            let (mut root, mut leaves) = (node.clone(), vec![]);
            root.move_leaves(&self.leaves, &mut leaves);
            Self { root, leaves }
        };
        self.root.conjuncts().into_iter().map(part).collect()
    }

    /// Returns the expression that holds where both do.
    pub(crate) fn and(self, other: Self) -> Self {
        let (mut second, mut leaves) = (other.root, self.leaves);
        second.move_leaves(&other.leaves, &mut leaves);
        Self { root: Node::Two(Two::And, Box::new([self.root, second])), leaves }
    }

    /// Returns the canonical text of a part.
    pub(crate) fn text(&self, part: &Node) -> String {
        self.printed(part).0
    }

    /// Returns text and level of a node.
    fn printed(&self, node: &Node) -> (String, usize) {
        let operand = |operand: &Node, least: usize| {
            let (text, level) = self.printed(operand);
            if level < least { format!("({text})") } else { text }
        };
        let all = |operands: &[Node]| {
            operands.iter().map(|one| self.text(one)).collect::<Vec<_>>().join(", ")
        };
        let call = |name: &str, values: &str| (format!("{name}({values})"), ATOM);
        let choice = |value: &Node, sign: &str, choices: &[Node]| {
            let value = operand(value, NOT_LEVEL + 1);
            (format!("{value} {sign} ({})", all(choices)), NOT_LEVEL)
        };
        match node {
            Node::Integer(integer) => (integer.to_string(), ATOM),
            Node::Number(number) => (format!("{number:?}"), ATOM),
            Node::Text(text) => {
                (format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")), ATOM)
            }
            Node::Leaf(leaf) => match &self.leaves[*leaf] {
                Leaf { name, is_length: true } => call("len", &printed_name(name)),
                Leaf { name, is_length: false } => (printed_name(name), ATOM),
            },
            Node::One(One::Negate, negated) => (format!("-{}", operand(negated, UNARY)), UNARY),
            Node::One(One::Not, negated) => match &**negated {
                Node::In(value, choices) => choice(value, "not in", choices),
                negated => (format!("not {}", operand(negated, NOT_LEVEL)), NOT_LEVEL),
            },
            Node::One(one, value) => {
                let name = ONES.iter().find(|(_, known)| known == one).map_or("", |(name, _)| name);
                call(name, &self.text(value))
            }
            Node::Two(two, operands) => {
                if let Some((name, _)) = TWOS.iter().find(|(_, known)| known == two) {
                    return call(name, &all(&**operands));
                }
                let of_level = |operators: &[(&'static str, Two)]| {
                    operators.iter().find(|(_, known)| known == two).map(|(sign, _)| *sign)
                };
                let mut found = LEVELS.iter().map(|level| of_level(level)).enumerate();
                let (level, sign) = found
                    .find_map(|(level, sign)| sign.map(|sign| (level, sign)))
                    .unwrap_or_default();
                let [first, second] = &**operands;
                let first = operand(first, level + usize::from(level == NOT_LEVEL));
                (format!("{first} {sign} {}", operand(second, level + 1)), level)
            }
            Node::Where(operands) => call("where", &all(&**operands)),
            Node::In(value, choices) => choice(value, "in", choices),
        }
    }
}

fn printed_name(name: &str) -> String {
    let is_plain = name.chars().all(is_of_name)
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && !is_word_operator(name);
    if is_plain { name.to_owned() } else { format!("`{name}`") }
}

/// The canonical text: parsed, it gives the same expression.
impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(&self.root))
    }
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
        assert_eq!(expression.leaves().len(), 2);
        let expression =
            Expression::parse("`image/height` / `image` + image", Dialect::Compute).unwrap();
        assert_eq!(expression.names(), ["image/height", "image"]);
        assert!(wrong("`image/height").starts_with("the expression needs a name between two `"));
    }
}
