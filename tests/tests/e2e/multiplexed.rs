//! HTTP/2 and HTTP/3 to clients: what holds for any version whose connections carry many requests.
//!
//! Each test runs once for each version. What only one version has is in the modules `http2` and
//! `http3`.

/// Generates a test of each version from each of these functions.
macro_rules! test_each_version {
    ($($name:ident),* $(,)?) => {
        mod http2 {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> tests::Result {
                    super::$name::<crate::http2::Http2Fixture>().await
                }
            )*
        }

        mod http3 {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() -> tests::Result {
                    super::$name::<crate::http3::Http3Fixture>().await
                }
            )*
        }
    };
}

/// Sheave and its client, of either version.
pub(crate) mod fixture;
/// Streams are requests: balancing, and limits of concurrency.
pub(crate) mod streams;
/// Translation of messages between HTTP versions.
mod messages;
/// Interim (1xx) responses.
mod interim;
/// Memory cost of slow readers and of idle connections.
pub(crate) mod pressure;
/// Connections close without losing requests.
mod ending;
