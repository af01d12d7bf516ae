#![no_main]
resat_fuzz::target!("onnx");
