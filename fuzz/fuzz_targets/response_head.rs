//! Response heads, complete and truncated.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy::head::RequestMethod;

fuzz_target!(|bytes: &[u8]| {
    let len = fuzz::below(bytes.len() + 1, bytes);
    fuzz::laws::response(bytes, len, RequestMethod::Get);
    fuzz::laws::response(bytes, len, RequestMethod::Head);
});
