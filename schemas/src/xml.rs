//! XML as JSON, so that pointers lead into it: element content becomes text, child elements an object,
//! repeated children an array, attributes `@NAME`. Prefixes of names are dropped. No entities but the five of
//! XML itself, no document types: nothing is fetched, nothing expands.

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};
use serde_json::{Map, Value};
use thiserror::Error;

/// Deepest nesting of elements.
pub const DEPTH_MAX: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum XmlError {
    #[error("the XML is malformed: {0}")]
    Malformed(String),
    #[error("the XML nests deeper than {DEPTH_MAX} levels")]
    TooDeep,
    #[error("the XML declares a document type, which is not read")]
    DocumentType,
}

/// An element that is open.
struct Element {
    name: String,
    members: Map<String, Value>,
    text: String,
}

/// `<a x="1"><b>2</b></a>` is `{"a":{"@x":"1","b":"2"}}`.
pub fn xml_to_json(text: &str) -> Result<Vec<u8>, XmlError> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element> = vec![Element::new("")];
    loop {
        match reader.read_event().map_err(malformed)? {
            Event::Start(start) => {
                if open.len() > DEPTH_MAX {
                    return Err(XmlError::TooDeep);
                }
                open.push(element(&start)?);
            }
            Event::Empty(start) => close(&mut open, element(&start)?),
            Event::End(_) => match open.pop() {
                Some(done) if !open.is_empty() => close(&mut open, done),
                _ => return Err(malformed("an element ends that was not begun")),
            },
            Event::Text(text) => {
                let text = text.decode().map_err(malformed)?;
                push_text(&mut open, &unescape(&text).map_err(malformed)?);
            }
            Event::GeneralRef(name) => {
                let reference = format!("&{};", name.decode().map_err(malformed)?);
                push_text(&mut open, &unescape(&reference).map_err(malformed)?);
            }
            Event::CData(data) => push_text(&mut open, &data.decode().map_err(malformed)?),
            Event::DocType(_) => return Err(XmlError::DocumentType),
            Event::Eof => break,
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
        }
    }
    match (open.pop(), open.is_empty()) {
        (Some(root), true) => Ok(Value::Object(root.members).to_string().into_bytes()),
        _ => Err(malformed("it ends early")),
    }
}

fn malformed(error: impl ToString) -> XmlError {
    XmlError::Malformed(error.to_string())
}

fn push_text(open: &mut [Element], text: &str) {
    if let Some(element) = open.last_mut() {
        element.text.push_str(text);
    }
}

/// Puts a finished element into the one that is open.
fn close(open: &mut [Element], done: Element) {
    let Some(parent) = open.last_mut() else { return };
    let (name, value) = done.finish();
    match parent.members.get_mut(&name) {
        None => _ = parent.members.insert(name, value),
        Some(Value::Array(all)) => all.push(value),
        Some(one) => *one = Value::Array(vec![one.take(), value]),
    }
}

fn element(start: &BytesStart<'_>) -> Result<Element, XmlError> {
    let name = std::str::from_utf8(start.local_name().into_inner()).map_err(malformed)?.to_owned();
    let mut element = Element::new(&name);
    for attribute in start.attributes() {
        let attribute = attribute.map_err(malformed)?;
        let name = std::str::from_utf8(attribute.key.local_name().into_inner()).map_err(malformed)?.to_owned();
        let value = std::str::from_utf8(&attribute.value).map_err(malformed)?;
        let value = unescape(value).map_err(malformed)?.into_owned();
        element.members.insert(format!("@{name}"), Value::String(value));
    }
    Ok(element)
}

impl Element {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), members: Map::new(), text: String::new() }
    }

    fn finish(mut self) -> (String, Value) {
        let text = self.text.trim();
        let has_children = self.members.keys().any(|name| !name.starts_with('@'));
        let value = if has_children {
            Value::Object(self.members)
        } else if self.members.is_empty() {
            Value::String(text.to_owned())
        } else {
            self.members.insert("#text".to_owned(), Value::String(text.to_owned()));
            Value::Object(self.members)
        };
        (self.name, value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json(text: &str) -> Result<String, XmlError> {
        xml_to_json(text).map(|bytes| String::from_utf8(bytes).expect("JSON is UTF-8"))
    }

    #[test]
    fn elements_become_members() {
        let table = [
            ("<?xml version=\"1.0\"?>\n<a><b>1</b><!-- x --></a>\n", r#"{"a":{"b":"1"}}"#),
            ("<a><b>1</b><b>2</b><b>3</b></a>", r#"{"a":{"b":["1","2","3"]}}"#),
            ("<n:a x='1' n:y=\"&lt;\"><n:b/></n:a>", r#"{"a":{"@x":"1","@y":"<","b":""}}"#),
            ("<a id=\"7\">t &amp; u</a>", r##"{"a":{"@id":"7","#text":"t & u"}}"##),
            ("<a><![CDATA[<b>]]></a>", r#"{"a":"<b>"}"#),
        ];
        for (text, expected) in table {
            assert_eq!(json(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn hostile_documents_are_refused() {
        let bomb = "<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><x>&b;</x>";
        assert_eq!(json(bomb), Err(XmlError::DocumentType));
        for bad in ["<a>&b;</a>", "<a><b></a>", "<a>", "</a>", "<a x=1/>", "<a x='&b;'/>"] {
            assert!(matches!(json(bad), Err(XmlError::Malformed(_))), "{bad}: {:?}", json(bad));
        }
        assert_eq!(json(&"<a>".repeat(100_000)), Err(XmlError::TooDeep));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,200}") {
            let _ = json(&text);
            let _ = json(&format!("<a>{text}</a>"));
        }
    }
}
