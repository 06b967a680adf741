//! Response heads, complete and truncated.
#![no_main]

use codec::head::RequestMethod;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let len = fuzz::below(bytes.len() + 1, bytes);
    fuzz::laws::response(bytes, len, RequestMethod::Get);
    fuzz::laws::response(bytes, len, RequestMethod::Head);
});
