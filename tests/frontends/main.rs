//! What front ends read, and what Relay's text and JSON say of it.

#[path = "../recorded/archive.rs"]
mod archive;
mod json;
mod onnx;
mod onnx_large;
#[path = "../common/protobuf.rs"]
#[allow(unreachable_pub, reason = "it is also a module of another test")]
mod protobuf;
#[path = "../common/same.rs"]
#[allow(unreachable_pub, reason = "it is also a module of a library")]
mod same;
mod skeletons;
mod text;
mod tflite;
