//! Names that an operator gives. They stand in URLs, metrics labels, keys and rows, so they are
//! bounded and free of control characters; everything else is the operator's taste.

use thiserror::Error;

/// Longest name of a tenant or a source, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    #[error("is empty: give it a name")]
    Empty,
    #[error("is {bytes} bytes long: at most {NAME_BYTES_MAX} are allowed")]
    TooLong { bytes: usize },
    #[error("holds a control character at byte {at}: use printable characters")]
    Control { at: usize },
    #[error("{name:?} is not of the form [a-z0-9-]{{1,63}}")]
    NotASinkName { name: String },
}

/// Checks the name of a tenant or a source.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong { bytes: name.len() });
    }
    match name.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, _)) => Err(NameError::Control { at }),
        None => Ok(()),
    }
}

/// Checks the name of a sink: `[a-z0-9-]{1,63}`, since it becomes part of a stored row.
pub fn check_sink_name(name: &str) -> Result<(), NameError> {
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if (1..=63).contains(&name.len()) && name.bytes().all(allowed) {
        Ok(())
    } else {
        Err(NameError::NotASinkName { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_and_printable() {
        assert_eq!(check_name("a:b"), Ok(()));
        assert_eq!(check_name("a|b/ä"), Ok(()));
        assert_eq!(check_name(""), Err(NameError::Empty));
        assert_eq!(check_name("a\u{1f}"), Err(NameError::Control { at: 1 }));
        assert_eq!(check_name(&"x".repeat(129)), Err(NameError::TooLong { bytes: 129 }));
    }

    #[test]
    fn sink_names_are_labels() {
        assert_eq!(check_sink_name("effects-1"), Ok(()));
        for bad in ["", "A", "a_b", &"x".repeat(64)] {
            assert!(check_sink_name(bad).is_err(), "{bad:?}");
        }
    }
}
