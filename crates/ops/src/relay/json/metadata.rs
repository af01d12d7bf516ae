//! The `#[metadata]` section of Relay text: constants and other objects that the program names as `meta[TYPE][NUMBER]`.

use super::{graph::Graph, schema, value::Writer};
use crate::{
    diag::Refused,
    ir::{AttrValue, Name},
};

/// Objects by TVM's type key; `meta[key][i]` is member `i` of the list under `key`.
///
/// Constants are [`AttrValue::Tensor`], operators' attribute records (`relay.attrs.…`) are [`AttrValue::Dict`] of all their
/// fields, numbers, strings and lists are what they say, and any other object is [`AttrValue::Opaque`].
pub type Metadata = Vec<(Name, Vec<AttrValue>)>;

/// Reads the JSON of a metadata section. `name` is the file's, for messages.
pub fn parse_metadata(name: &str, text: &str) -> Result<Metadata, Refused> {
    let graph = Graph::parse(name, text)?;
    let groups = graph.entries(graph.root)?.into_iter();
    let group = |(key, list): (String, usize)| {
        if graph.key(list) != "Array" {
            return graph.refuse(list, "the metadata section holds lists of objects");
        }
        let members = graph.nodes[list].data.iter().map(|&n| graph.value(n));
        Ok((Name::from(key), members.collect::<Result<Vec<_>, Refused>>()?))
    };
    groups.map(group).collect()
}

/// The JSON of a metadata section that holds the given objects.
pub fn print_metadata(groups: &[(Name, Vec<AttrValue>)]) -> Result<String, Refused> {
    let mut w = Writer::new();
    let mut entries = Vec::new();
    for (key, members) in groups {
        let mut numbers = Vec::new();
        for member in members {
            numbers.push(match member {
                AttrValue::Dict(fields) if key.starts_with(schema::ATTRS_PREFIX) => {
                    w.record(key, fields.iter().map(|(n, v)| (n, v)))?
                }
                value => w.value(value)?,
            });
        }
        entries.push((key.to_string(), w.array(numbers)));
    }
    let root = w.map(entries);
    w.print(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ir::ConstAttr, tensor::Tensor};

    #[test]
    fn objects_survive() {
        let int = |i: i64| AttrValue::from(i);
        let scan = [("axis".into(), int(1)), ("dtype".into(), AttrValue::None), ("exclusive".into(), true.into())];
        let groups: Metadata = vec![
            ("IntImm".into(), vec![int(3), int(1 << 40), true.into()]),
            ("Array".into(), vec![AttrValue::List([int(3), AttrValue::None, 0.1.into(), "é\n".into()].into())]),
            ("relay.Constant".into(), vec![AttrValue::Tensor(ConstAttr(Tensor::from_slice(&[2], &[1.5f32, 2.0])))]),
            ("relay.attrs.ScanopAttrs".into(), vec![AttrValue::Dict(scan.into())]),
        ];
        let text = print_metadata(&groups).expect("these can be written");
        assert_eq!(parse_metadata("t", &text).expect("what was written is read"), groups);
    }

    #[test]
    fn unknown_objects_are_carried_through() {
        let text = r#"{"root": 1, "nodes": [{"type_key": ""}, {"type_key": "Map", "keys": ["tir.Mul"], "data": [2]},
            {"type_key": "Array", "data": [3, 3]},
            {"type_key": "tir.Mul", "attrs": {"a": "4", "b": "4", "dtype": "int32", "span": "0"}},
            {"type_key": "IntImm", "attrs": {"dtype": "int32", "span": "0", "value": "3"}}]}"#;
        let groups = parse_metadata("t", text).expect("well formed");
        assert!(
            matches!(&groups[0].1[1], AttrValue::Opaque(key, text) if key.as_str() == "tir.Mul" && text.contains("IntImm"))
        );
        let again = print_metadata(&groups).expect("it can be written");
        assert_eq!(parse_metadata("t", &again).expect("what was written is read"), groups);
    }

    #[test]
    fn damage_is_refused() {
        let message = |text: &str| parse_metadata("f.relay", text).expect_err("damaged").to_string();
        assert!(message("{").contains("f.relay: not in the form of TVM's JSON"));
        assert!(message(r#"{"root": 7, "nodes": []}"#).contains("the root is node 7"));
        let text = r#"{"root": 1, "nodes": [{"type_key": ""}, {"type_key": "Map", "keys": ["X"], "data": [2]},
            {"type_key": "Array", "data": [3]}, {"type_key": "Array", "data": [2]}]}"#;
        assert!(message(text).contains("deep"));
        let text = text.replace(r#"{"type_key": "Array", "data": [2]}"#, r#"{"type_key": "relay.Nonesuch"}"#);
        assert!(message(&text).contains("JSON node 3 (relay.Nonesuch): objects of this type are not part"));
    }
}
