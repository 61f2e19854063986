//! JSON pointers (RFC 6901), and the two things that declarations add to them: names that stand elsewhere in
//! the document, and `*` for every element of an array.

/// Unescaped segments; none: the whole document.
pub type Pointer = Vec<String>;

/// A segment of a pointer whose name may stand in the document.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Segment {
    Name(String),
    /// `{/POINTER}`: the text that stands there.
    NameAt(Pointer),
}

/// Reads `/a/b`; the empty text is the whole document.
pub fn parse_pointer(text: &str) -> Option<Pointer> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    text.strip_prefix('/')?.split('/').map(unescape).collect()
}

/// Reads `/a/{/b/c}/d`: segments in braces are pointers to a name.
pub fn parse_segments(text: &str) -> Option<Vec<Segment>> {
    let mut rest = text;
    let mut segments = Vec::new();
    while !rest.is_empty() {
        rest = rest.strip_prefix('/')?;
        let (segment, behind) = match rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((inner, behind)) => (Segment::NameAt(parse_pointer(inner).filter(|p| !p.is_empty())?), behind),
            None => {
                let (name, behind) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                (Segment::Name(unescape(name)?), behind)
            }
        };
        segments.push(segment);
        rest = behind;
    }
    Some(segments)
}

/// `pointer` as text; the opposite of [`parse_pointer`].
pub fn write_pointer(pointer: &[String]) -> String {
    pointer.iter().map(|segment| format!("/{}", segment.replace('~', "~0").replace('/', "~1"))).collect()
}

/// Names up to the first segment that stands elsewhere.
pub fn fixed_start(segments: &[Segment]) -> Pointer {
    let name = |segment: &Segment| match segment {
        Segment::Name(name) => Some(name.clone()),
        Segment::NameAt(_) => None,
    };
    segments.iter().map_while(name).collect()
}

fn unescape(segment: &str) -> Option<String> {
    let escapes_are_whole = segment.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    escapes_are_whole.then(|| segment.replace("~1", "/").replace("~0", "~"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_read_and_written() {
        for text in ["", "/", "/a/b", "/a~1b/~0", "/0/*"] {
            assert_eq!(parse_pointer(text).map(|p| write_pointer(&p)).as_deref(), Some(text));
        }
        for bad in ["a", "/~", "/~2"] {
            assert_eq!(parse_pointer(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_may_stand_elsewhere() {
        let segments = parse_segments("/data/{/data/type}/id").expect("segments");
        let at = Segment::NameAt(vec!["data".into(), "type".into()]);
        assert_eq!(segments, [Segment::Name("data".into()), at, Segment::Name("id".into())]);
        assert_eq!(fixed_start(&segments), ["data"]);
        for bad in ["data", "/{}", "/{a}", "/{/a}b", "/~"] {
            assert_eq!(parse_segments(bad), None, "{bad}");
        }
    }
}
