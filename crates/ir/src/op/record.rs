//! Operators as data.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::table;
use crate::ir::OpId;

/// Operators go by name: their ids are those of a process.
impl Serialize for OpId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.op().name())
    }
}

impl<'de> Deserialize<'de> for OpId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OpId, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = table().read().ok().and_then(|table| table.lookup(&name));
        known.ok_or_else(|| D::Error::custom(format!("there is no operator `{name}`")))
    }
}
