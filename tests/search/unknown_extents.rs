//! Rules where extents are unknown: they fire where these are equal at every size that the program takes, and nowhere else.

use resat::{
    pass::{Pass, PassContext, Settings, sequence},
    relay::text::{parse_module, print_module},
    target::Target,
};

/// What the rules make of the body of a function over these parameters, printed.
fn optimized(params: &str, body: &str) -> String {
    let text = format!("#[version = \"0.0.5\"]\ndef @main({params}) {{\n{body}\n}}");
    let module = parse_module("open.relay", &text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let target = Target::parse("llvm -mcpu=x86-64-v3 -num-cores=1").expect("legal");
    let passes = sequence("SimplifyInference, Saturate(algebra, shapes, idioms, attention)", &Settings::new(target))
        .expect("passes");
    print_module(&passes.run(module, &mut PassContext::default()).expect("well typed"))
}

/// Attention from its parts: queries and keys of these shapes, the keys the values, too.
fn attention(query: &str, key: &str, mask: &str) -> String {
    optimized(
        &format!("%q: Tensor[{query}, float32], %k: Tensor[{key}, float32], %m: Tensor[{mask}, float32]"),
        "%0 = reshape(%q, newshape=[-3, 0, 0]);
         %1 = reshape(%k, newshape=[-3, 0, 0]);
         %2 = nn.batch_matmul(%0, %1, transpose_b=True);
         %3 = reshape(%2, newshape=[-4, -1, 12, 0, 0]);
         %4 = add(%3, %m);
         %5 = nn.softmax(%4, axis=3);
         %6 = reshape(%5, newshape=[-3, 0, 0]);
         %7 = nn.batch_matmul(%6, %1, transpose_b=False);
         reshape(%7, newshape=[-4, -1, 12, 0, 0])",
    )
}

#[test]
fn attention_is_found_at_unknown_lengths() {
    // The mask may be one for all keys or all images: it is broadcast within.
    let found = attention("(?, 12, ?, 64)", "(?, 12, ?, 64)", "(?, 1, 1, ?)");
    assert!(found.contains("nn.attention"), "{found}");
    assert!(!found.contains("nn.batch_matmul"), "{found}");
}

#[test]
fn attention_is_not_found_where_a_mask_may_be_longer() {
    // One query and a mask of several rows make several rows of logits.
    let other = attention("(?, 12, ?, 64)", "(?, 12, ?, 64)", "(?, 1, ?, ?)");
    assert!(!other.contains("nn.attention"), "{other}");
}

#[test]
fn values_of_another_length_than_keys_are_kept_apart() {
    // One key, and as many values as the mask has places: softmax is over the mask's.
    let other = optimized(
        "%q: Tensor[(?, 12, ?, 64), float32], %k: Tensor[(?, 12, ?, 64), float32], %v: Tensor[(?, 12, ?, 64), float32], %m: Tensor[(?, 1, 1, ?), float32]",
        "%0 = nn.batch_matmul(reshape(%q, newshape=[-3, 0, 0]), reshape(%k, newshape=[-3, 0, 0]), transpose_b=True);
         %1 = add(reshape(%0, newshape=[-4, -1, 12, 0, 0]), %m);
         %2 = reshape(nn.softmax(%1, axis=3), newshape=[-3, 0, 0]);
         nn.batch_matmul(%2, reshape(%v, newshape=[-3, 0, 0]), transpose_b=False)",
    );
    assert!(!other.contains("nn.attention"), "{other}");
}

#[test]
fn what_moves_nothing_is_dropped() {
    let x = "%x: Tensor[(?, ?, 768), float32]";
    let same = optimized(x, "%0 = reshape(%x, newshape=[-3, 0]);\nnn.relu(reshape(%0, newshape=[-1, 768]))");
    assert_eq!(same.matches("reshape").count(), 1, "{same}");
    // Back to what it was.
    let back = optimized(x, "%0 = reshape(%x, newshape=[0, 0, 12, 64]);\nnn.relu(reshape(%0, newshape=[0, 0, -1]))");
    assert!(!back.contains("reshape"), "{back}");
    // Two extents that need not be equal.
    let kept = optimized("%x: Tensor[(?, ?), float32]", "reshape(reshape(%x, newshape=[-1]), newshape=[-1, 2])");
    assert!(kept.contains("reshape"), "{kept}");
}

#[test]
fn a_slice_that_cuts_large_sizes_is_kept() {
    let body = "strided_slice(%x, begin=[0, 0], end=[512, 8], strides=[1, 1])";
    for x in ["%x: Tensor[(?, 8), float32]", "%x: Tensor[(?, 8), float32], %y: Tensor[(?, ?, 7), float32]"] {
        let kept = optimized(x, body);
        assert!(kept.contains("strided_slice"), "{kept}");
    }
    let second =
        optimized("%x: Tensor[(?, ?), float32]", "strided_slice(%x, begin=[0, 0], end=[100000, 500], strides=[1, 1])");
    assert!(second.contains("strided_slice"), "{second}");
}

#[test]
fn what_broadcasts_at_some_sizes_is_kept() {
    // Either may have one row.
    let kept =
        optimized("%x: Tensor[(?, 8), float32], %y: Tensor[(?, 8), float32]", "%0 = zeros_like(%y);\nadd(%x, %0)");
    assert!(kept.contains("add"), "{kept}");
}
