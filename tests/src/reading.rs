//! Reading JSON reports.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// JSON whose objects name nothing twice; most readers would silently drop one of the two.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Unique(value)) = entries.next_element()? {
            array.push(value);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((key, Unique(value))) = entries.next_entry::<String, _>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("`{key}` comes twice in an object")));
            }
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

/// Reads text that must be one JSON value and nothing else, without a key that comes twice.
#[track_caller]
pub fn parse(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(Unique(value)) => value,
        Err(error) => panic!("{error}: JSON and nothing else is expected, but:\n{text}"),
    }
}

/// What a JSON pointer leads to.
#[track_caller]
fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    let found = value.pointer(pointer);
    found.unwrap_or_else(|| panic!("{pointer} is missing in {value:#}"))
}

/// A count.
#[track_caller]
pub fn number(value: &Value, pointer: &str) -> u64 {
    let found = at(value, pointer);
    found
        .as_u64()
        .unwrap_or_else(|| panic!("{pointer} is {found}, which is no count"))
}

/// A string.
#[track_caller]
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = at(value, pointer);
    found
        .as_str()
        .unwrap_or_else(|| panic!("{pointer} is {found}, which is no string"))
}

/// The entries of an array.
#[track_caller]
pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let found = at(value, pointer);
    found
        .as_array()
        .unwrap_or_else(|| panic!("{pointer} is {found}, which is no array"))
}

/// The sum of a count over all entries of an array.
#[track_caller]
pub fn sum(value: &Value, array: &str, field: &str) -> u64 {
    list(value, array).iter().map(|entry| number(entry, field)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "`b` comes twice")]
    fn a_key_that_comes_twice_is_found() {
        parse(r#"{"a": [{"b": 1, "c": 2, "b": 3}]}"#);
    }

    #[test]
    #[should_panic(expected = "JSON and nothing else")]
    fn text_after_json_is_found() {
        parse("{} done");
    }
}
