//! Parser of Pascal VOC annotations: the boxes of one image, as XML.
//!
//! The files are not trusted: their size and depth are bounded, a document type, which could define
//! entities, is rejected, and a box has to lie inside its image.

use std::borrow::Cow;

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesRef, Event};

/// Maximum size of a file, bytes; one object takes about 300.
pub(super) const FILE_BYTES_MAX: usize = 4 << 20;

/// Maximum depth of nested elements; VOC has 5.
const DEPTH_MAX: usize = 32;

/// The boxes of an image.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Annotation {
    /// Width in pixels.
    pub(super) width: u32,
    pub(super) height: u32,
    /// Objects in the file's order.
    pub(super) objects: Vec<Object>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Object {
    pub(super) name: String,
    pub(super) is_difficult: bool,
    pub(super) is_truncated: bool,
    pub(super) bounds: Bounds,
    /// Line of the object in the file, from 1.
    pub(super) line: usize,
}

/// A box relative to its image's width and height, from the upper left corner: 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounds {
    pub(super) xmin: f32,
    pub(super) ymin: f32,
    pub(super) xmax: f32,
    pub(super) ymax: f32,
}

/// A fault of a file, with its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub(super) struct Fault {
    /// Number of the line, from 1.
    line: usize,
    what: String,
}

/// A partly parsed object.
#[derive(Debug, Default)]
struct Draft {
    line: usize,
    name: Option<String>,
    difficult: Option<bool>,
    truncated: Option<bool>,
    /// xmin, ymin, xmax, ymax, in pixels.
    sides: [Option<f64>; 4],
}

const SIDES: [&str; 4] = ["xmin", "ymin", "xmax", "ymax"];

/// State of the parser while it walks over a file.
struct Walk<'a> {
    text: &'a str,
    reader: Reader<&'a [u8]>,
    /// Names of the open elements.
    path: Vec<String>,
    /// Text of the innermost open element so far.
    content: String,
    width: Option<u32>,
    height: Option<u32>,
    drafts: Vec<Draft>,
    has_ended: bool,
}

impl Annotation {
    /// Parses a file.
    ///
    /// # Errors
    /// It is not XML, or not an annotation; a box is not inside the image, or is inverted.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        if bytes.len() > FILE_BYTES_MAX {
            let what = format!("the file has more than the {FILE_BYTES_MAX} bytes that are read");
            return Err(Fault { line: 1, what });
        }
        let text = std::str::from_utf8(bytes).map_err(|error| Fault {
            line: line_of(bytes, error.valid_up_to()),
            what: "is not UTF-8".into(),
        })?;
        Walk::new(text.trim_start_matches('\u{feff}')).read()
    }
}

/// Returns the line of a byte, from 1.
fn line_of(bytes: &[u8], at: usize) -> usize {
    1 + bytes[..at.min(bytes.len())].iter().filter(|&&byte| byte == b'\n').count()
}

impl<'a> Walk<'a> {
    fn new(text: &'a str) -> Self {
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        Self {
            text,
            reader,
            path: Vec::new(),
            content: String::new(),
            width: None,
            height: None,
            drafts: Vec::new(),
            has_ended: false,
        }
    }

    fn fault(&self, what: impl Into<String>) -> Fault {
        let at = usize::try_from(self.reader.buffer_position()).unwrap_or(usize::MAX);
        Fault { line: line_of(self.text.as_bytes(), at), what: what.into() }
    }

    fn read(mut self) -> Result<Annotation, Fault> {
        loop {
            let event = self.reader.read_event();
            match event.map_err(|error| self.fault(format!("is no XML: {error}")))? {
                Event::Start(start) => {
                    let name = String::from_utf8_lossy(start.name().as_ref()).into_owned();
                    self.open(&name)?;
                }
                Event::End(_) => self.close()?,
                Event::Text(text) => {
                    let text = text.decode().map_err(|error| self.fault(error.to_string()))?;
                    self.push(&text)?;
                }
                Event::CData(text) => {
                    let text = text.decode().map_err(|error| self.fault(error.to_string()))?;
                    self.push(&text)?;
                }
                Event::GeneralRef(reference) => {
                    let text = self.resolve(&reference)?;
                    self.push(&text)?;
                }
                Event::DocType(_) => {
                    return Err(self.fault("has a document type, which annotations need not have"));
                }
                Event::Decl(declared) => match declared.encoding() {
                    Some(Ok(name)) if !name.eq_ignore_ascii_case(b"utf-8") => {
                        let name = String::from_utf8_lossy(&name).into_owned();
                        return Err(self.fault(format!("is written in `{name}`, not in UTF-8")));
                    }
                    _ => {}
                },
                Event::Comment(_) | Event::PI(_) | Event::Empty(_) => {}
                Event::Eof => return self.finish(),
            }
        }
    }

    fn open(&mut self, name: &str) -> Result<(), Fault> {
        if self.path.len() == DEPTH_MAX {
            return Err(self.fault(format!("has elements more than {DEPTH_MAX} deep")));
        }
        if self.path.is_empty() && (self.has_ended || name != "annotation") {
            return Err(self.fault(format!("has <{name}> where a single <annotation> is expected")));
        }
        self.content.clear();
        self.path.push(name.to_owned());
        if self.is_at(&["annotation", "object"]) {
            let line = self.fault("").line;
            self.drafts.push(Draft { line, ..Draft::default() });
        }
        Ok(())
    }

    fn is_at(&self, path: &[&str]) -> bool {
        self.path.iter().map(String::as_str).eq(path.iter().copied())
    }

    fn push(&mut self, text: &str) -> Result<(), Fault> {
        if self.path.is_empty() && !text.trim().is_empty() {
            return Err(self.fault("has text outside of <annotation>"));
        }
        self.content.push_str(text);
        Ok(())
    }

    fn resolve(&self, reference: &BytesRef<'_>) -> Result<String, Fault> {
        let said = reference.decode().unwrap_or(Cow::Borrowed("?"));
        let named = resolve_xml_entity(&said).map(str::to_owned);
        let named = named.or_else(|| Some(reference.resolve_char_ref().ok()??.to_string()));
        named.ok_or_else(|| self.fault(format!("has the entity `&{said};`, which is not defined")))
    }

    fn close(&mut self) -> Result<(), Fault> {
        let content = std::mem::take(&mut self.content);
        let content = content.trim();
        let path: Vec<_> = self.path.iter().map(String::as_str).collect();
        match path.as_slice() {
            ["annotation", "size", "width"] => {
                self.fill(self.pixels(content)?, |walk| &mut walk.width)?;
            }
            ["annotation", "size", "height"] => {
                self.fill(self.pixels(content)?, |walk| &mut walk.height)?;
            }
            // Parts of an object have their own names and boxes, one level deeper.
            ["annotation", "object", "name"] => {
                self.fill(content.to_owned(), |walk| &mut walk.draft().name)?;
            }
            ["annotation", "object", "difficult"] => {
                self.fill(self.flag(content)?, |walk| &mut walk.draft().difficult)?;
            }
            ["annotation", "object", "truncated"] => {
                self.fill(self.flag(content)?, |walk| &mut walk.draft().truncated)?;
            }
            ["annotation", "object", "bndbox", side] => {
                if let Some(side) = SIDES.iter().position(|name| name == side) {
                    self.fill(self.coordinate(content)?, |walk| &mut walk.draft().sides[side])?;
                }
            }
            _ => {}
        }
        self.path.pop();
        self.has_ended |= self.path.is_empty();
        Ok(())
    }

    fn draft(&mut self) -> &mut Draft {
        self.drafts.last_mut().expect("made where <object> starts")
    }

    /// Sets the value of an element that may occur only once.
    fn fill<T>(
        &mut self,
        value: T,
        place: impl FnOnce(&mut Self) -> &mut Option<T>,
    ) -> Result<(), Fault> {
        match place(self).replace(value) {
            None => Ok(()),
            Some(_) => {
                let name = self.path.last().map_or("", String::as_str);
                Err(self.fault(format!("has a second <{name}>")))
            }
        }
    }

    fn pixels(&self, text: &str) -> Result<u32, Fault> {
        match text.parse() {
            Ok(pixels) if pixels > 0 => Ok(pixels),
            _ => Err(self.fault(format!("has {text:?} for a number of pixels"))),
        }
    }

    fn coordinate(&self, text: &str) -> Result<f64, Fault> {
        match text.parse::<f64>() {
            Ok(place) if place.is_finite() => Ok(place),
            _ => Err(self.fault(format!("has {text:?} for a place in pixels"))),
        }
    }

    fn flag(&self, text: &str) -> Result<bool, Fault> {
        match text {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.fault(format!("has {text:?} where 0 or 1 is expected"))),
        }
    }

    fn finish(self) -> Result<Annotation, Fault> {
        if let Some(open) = self.path.last() {
            return Err(self.fault(format!("ends inside of <{open}>")));
        }
        let (Some(width), Some(height)) = (self.width, self.height) else {
            return Err(self.fault("has no <annotation> with a <size> of <width> and <height>"));
        };
        let objects = self.drafts.into_iter().map(|draft| draft.finish(width, height));
        Ok(Annotation { width, height, objects: objects.collect::<Result<_, _>>()? })
    }
}

impl Draft {
    fn finish(self, width: u32, height: u32) -> Result<Object, Fault> {
        let line = self.line;
        let fault = |what: String| Err(Fault { line, what });
        let Some(name) = self.name.filter(|name| !name.is_empty()) else {
            return fault("an object has no <name>".into());
        };
        let [Some(xmin), Some(ymin), Some(xmax), Some(ymax)] = self.sides else {
            let missing = SIDES.iter().zip(self.sides).find(|(_, side)| side.is_none());
            let side = missing.map_or("", |(name, _)| name);
            return fault(format!("object `{name}` has no <{side}> in its <bndbox>"));
        };
        for (least, most, size, axis) in [(xmin, xmax, width, "x"), (ymin, ymax, height, "y")] {
            if least >= most {
                return fault(format!(
                    "the box of `{name}` is inverted or empty: {axis}min {least}, {axis}max {most}"
                ));
            }
            if least < 0.0 || most > f64::from(size) {
                return fault(format!(
                    "the box of `{name}` is not inside of the image: {axis}min {least}, {axis}max {most}, of \
                     {size} pixels"
                ));
            }
        }
        let part = |place: f64, size: u32| (place / f64::from(size)) as f32;
        Ok(Object {
            name,
            is_difficult: self.difficult.unwrap_or(false),
            is_truncated: self.truncated.unwrap_or(false),
            bounds: Bounds {
                xmin: part(xmin, width),
                ymin: part(ymin, height),
                xmax: part(xmax, width),
                ymax: part(ymax, height),
            },
            line,
        })
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    const GOOD: &str = "<annotation>
    <folder>VOC2012</folder><filename>1.jpg</filename>
    <size><width>200</width><height>100</height><depth>3</depth></size>
    <segmented>0</segmented>
    <object>
        <name>person</name><pose>Unspecified</pose><truncated>1</truncated>
        <bndbox><xmax>100</xmax><xmin>50</xmin><ymin>0</ymin><ymax>100</ymax></bndbox>
        <part><name>head</name><bndbox><xmin>60</xmin><ymin>1</ymin><xmax>70</xmax><ymax>9</ymax></bndbox></part>
    </object>
    <object>
        <difficult>1</difficult>
        <bndbox><xmin>1</xmin><ymin>2.5</ymin><xmax>200</xmax><ymax>25</ymax></bndbox>
        <name> salt &amp; p&#101;pper<![CDATA[ <x>]]> </name>
    </object>
</annotation>
";

    fn fault(old: &str, new: &str) -> String {
        assert!(GOOD.contains(old), "{old}");
        Annotation::parse(GOOD.replacen(old, new, 1).as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn boxes_are_parts_of_their_image() {
        let found = Annotation::parse(GOOD.as_bytes()).unwrap();
        assert_eq!((found.width, found.height), (200, 100));
        let bounds = |xmin, ymin, xmax, ymax| Bounds { xmin, ymin, xmax, ymax };
        let person = Object {
            name: "person".into(),
            is_difficult: false,
            is_truncated: true,
            bounds: bounds(0.25, 0.0, 0.5, 1.0),
            line: 5,
        };
        let other = Object {
            name: "salt & pepper <x>".into(),
            is_difficult: true,
            is_truncated: false,
            bounds: bounds(0.005, 0.025, 1.0, 0.25),
            line: 10,
        };
        assert_eq!(found.objects, [person, other]);
    }

    #[test]
    fn an_image_may_have_no_objects_and_a_file_a_byte_order_mark() {
        let text = "\u{feff}<?xml version='1.0' encoding='UTF-8'?><!-- x --><annotation><size><width>1</width>\
                    <height>2</height></size></annotation>\n";
        let found = Annotation::parse(text.as_bytes()).unwrap();
        assert_eq!(found, Annotation { width: 1, height: 2, objects: vec![] });
    }

    #[test]
    fn boxes_that_are_none_are_named_with_their_line() {
        let check = |old, new, expected: Expect| expected.assert_eq(&fault(old, new));
        check(
            "<xmax>100<",
            "<xmax>201<",
            expect![
                "line 5: the box of `person` is not inside of the image: xmin 50, xmax 201, of 200 pixels"
            ],
        );
        check(
            "<ymin>0<",
            "<ymin>-1<",
            expect![
                "line 5: the box of `person` is not inside of the image: ymin -1, ymax 100, of 100 pixels"
            ],
        );
        check(
            "<xmin>50<",
            "<xmin>100<",
            expect!["line 5: the box of `person` is inverted or empty: xmin 100, xmax 100"],
        );
        check(
            "<ymax>25<",
            "<ymax>2<",
            expect![
                "line 10: the box of `salt & pepper <x>` is inverted or empty: ymin 2.5, ymax 2"
            ],
        );
        check(
            "<xmin>50</xmin>",
            "",
            expect!["line 5: object `person` has no <xmin> in its <bndbox>"],
        );
        check("<xmin>50<", "<xmin>NaN<", expect![[r#"line 7: has "NaN" for a place in pixels"#]]);
        check(
            "<xmin>50<",
            "<xmin>1e999<",
            expect![[r#"line 7: has "1e999" for a place in pixels"#]],
        );
        check(
            "<xmin>50<",
            "<xmin/><xmin>50<",
            expect![[r#"line 7: has "" for a place in pixels"#]],
        );
        check("<ymin>0<", "<ymin>0</ymin><ymin>0<", expect!["line 7: has a second <ymin>"]);
        check("<name>person</name>", "", expect!["line 5: an object has no <name>"]);
        check(
            "<truncated>1<",
            "<truncated>yes<",
            expect![[r#"line 6: has "yes" where 0 or 1 is expected"#]],
        );
    }

    #[test]
    fn files_that_are_no_annotations_are_refused() {
        let check = |old, new, expected: Expect| expected.assert_eq(&fault(old, new));
        check(
            "<width>200</width>",
            "",
            expect!["line 16: has no <annotation> with a <size> of <width> and <height>"],
        );
        check("<width>200<", "<width>0<", expect![[r#"line 3: has "0" for a number of pixels"#]]);
        check(
            "</object>",
            "</objekt>",
            expect![
                "line 9: is no XML: ill-formed document: expected `</object>`, but `</objekt>` was found"
            ],
        );
        check("</annotation>", "", expect!["line 16: ends inside of <annotation>"]);
        check(
            "<annotation>",
            "<!DOCTYPE a [<!ENTITY x 'y'>]><annotation>",
            expect!["line 1: has a document type, which annotations need not have"],
        );
        check(
            "<annotation>",
            "<?xml version='1.0' encoding='latin1'?><annotation>",
            expect!["line 1: is written in `latin1`, not in UTF-8"],
        );
        check(
            "salt &amp;",
            "salt &nbsp;",
            expect!["line 13: has the entity `&nbsp;`, which is not defined"],
        );
        check(
            "</annotation>",
            "</annotation><annotation/>",
            expect!["line 15: has <annotation> where a single <annotation> is expected"],
        );
        check(
            "</annotation>",
            "</annotation>text",
            expect!["line 16: has text outside of <annotation>"],
        );
        let other = |bytes: &[u8]| Annotation::parse(bytes).unwrap_err().to_string();
        expect!["line 1: has no <annotation> with a <size> of <width> and <height>"]
            .assert_eq(&other(b""));
        expect!["line 1: has <kitti> where a single <annotation> is expected"]
            .assert_eq(&other(b"<kitti/>"));
        expect!["line 2: is not UTF-8"].assert_eq(&other(b"<annotation>\n\xff"));
        expect!["line 1: the file has more than the 4194304 bytes that are read"]
            .assert_eq(&other(&[b' '; FILE_BYTES_MAX + 1]));
    }

    #[test]
    fn depth_and_size_are_bounded() {
        let deep = "<annotation>".to_owned() + &"<a>".repeat(1_000_000);
        let error = Annotation::parse(deep.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, "line 1: has elements more than 32 deep");
    }

    #[test]
    fn no_cut_and_no_changed_byte_makes_a_panic() {
        let good = Annotation::parse(GOOD.as_bytes()).unwrap();
        for at in 0..GOOD.len() {
            assert!(Annotation::parse(&GOOD.as_bytes()[..at]).is_err() || at + 1 >= GOOD.len());
            for byte in [0, b'<', b'>', b'&', b'"', b'-', b'9', 0xff] {
                let mut changed = GOOD.as_bytes().to_vec();
                changed[at] = byte;
                if let Ok(found) = Annotation::parse(&changed) {
                    let inside = |b: &Bounds| {
                        0.0 <= b.xmin
                            && b.xmin < b.xmax
                            && b.xmax <= 1.0
                            && b.ymin < b.ymax
                            && b.ymax <= 1.0
                    };
                    assert!(found.objects.iter().all(|object| inside(&object.bounds)));
                    assert!(found.objects.len() <= good.objects.len());
                }
            }
        }
    }
}
