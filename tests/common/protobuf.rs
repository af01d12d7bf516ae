//! Fields of protobuf messages, as tests write ONNX models.

/// A number.
pub fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// A string, bytes, or a message.
pub fn bytes(field: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    out
}

/// An ONNX model of `x + w` over two numbers, `data` being the fields of the weight that say what it holds.
pub fn sum_of(weight: &str, data: &[u8]) -> Vec<u8> {
    let ty = bytes(1, [number(1, 1), bytes(2, bytes(1, number(1, 2)))].concat());
    let port = |name: &str| [bytes(1, name), bytes(2, &ty)].concat();
    let node = [bytes(1, "x"), bytes(1, weight), bytes(2, "y"), bytes(4, "Add")].concat();
    let tensor = [&number(1, 2)[..], &number(2, 1), &bytes(8, weight), data].concat();
    let graph = [bytes(1, node), bytes(2, "g"), bytes(5, tensor), bytes(11, port("x")), bytes(12, port("y"))].concat();
    [number(1, 8), bytes(7, graph), bytes(8, number(2, 17))].concat()
}
