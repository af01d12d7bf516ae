//! TVM's operators that resat knows of and does not take, with the reason: readers name it.

/// Names, or beginnings of names that end in a dot, and why programs that use them are refused.
const TABLE: &[(&str, &str)] = &[
    ("annotation.with_funcid", "it numbers functions for a pass of TVM's, and has no type"),
    ("auto_scheduler_layout_transform", "it converts to layouts that only TVM's tuner knows"),
    ("call_lowered", "it calls a function that TVM has lowered to its tensor IR, which is not part of Relay's text"),
    ("contrib.ethosu.", "it is for Arm's Ethos-U processors"),
    ("hardswish", "TVM knows only its name; qnn.hardswish is an operator"),
    ("memory.", "it is a step of TVM's virtual machine, which its passes insert; give the program before these passes"),
    ("meta_schedule_layout_transform", "it converts to layouts that only TVM's tuner knows"),
    (
        "nn.contrib_conv2d_gemm_without_weight_transform",
        "TVM's passes for Arm processors make it of `nn.conv2d`; give the program before these passes",
    ),
    (
        "nn.contrib_conv2d_winograd_nnpack_weight_transform",
        "it arranges a weight in a way of NNPACK's own; give the program before TVM's passes for that library",
    ),
    (
        "nn.contrib_conv3d_winograd_without_weight_transform",
        "TVM's passes for graphics processors make it of `nn.conv3d`; give the program before these passes",
    ),
    ("parser.MetaRef", "it stands for an object of a metadata section that was not read"),
    ("scatter", "TVM knows only its name; scatter_elements and scatter_nd are operators"),
    ("torch_op", "it calls a function of PyTorch"),
    ("vm.", "it is a step of TVM's virtual machine, which its passes insert; give the program before these passes"),
];

/// Why an operator of TVM's is not supported, where it is a known one.
pub fn unsupported(name: &str) -> Option<&'static str> {
    let is = |known: &str| known == name || known.ends_with('.') && name.starts_with(known);
    TABLE.iter().find(|(known, _)| is(known)).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_both_supported_and_not() {
        for id in crate::ops::all() {
            assert_eq!(unsupported(id.op().name()), None, "{}", id.op().name());
        }
        assert!(unsupported("vm.invoke_tvm_op").is_some_and(|why| why.contains("virtual machine")));
        assert_eq!(unsupported("vm"), None);
    }
}
