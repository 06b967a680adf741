//! Objects that an announcer reads beside its Leases: the labels of its node, and the passwords of routers.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Secret};
use kube_client::{Api, Error};
use tokio::time::timeout;

use crate::ClusterClient;

/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Key of a password in its Secret.
const PASSWORD: &str = "password";

impl ClusterClient {
    /// Returns the labels of a node; the error is a sentence.
    ///
    /// # Errors
    /// If there is no such node, or the API server does not answer.
    pub async fn node_labels(&self, name: &str) -> Result<BTreeMap<String, String>, String> {
        let api: Api<Node> = Api::all(self.client.clone());
        let node = within_time(api.get_opt(name)).await?;
        let node = node.ok_or_else(|| format!("there is no Node {name}"))?;
        Ok(node.metadata.labels.unwrap_or_default())
    }

    /// Returns the value of `password` in a Secret; the error is a sentence.
    ///
    /// # Errors
    /// If there is no such Secret, it has no password, or the API server does not answer.
    pub async fn password(&self, namespace: &str, name: &str) -> Result<Vec<u8>, String> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let missing = || format!("there is no Secret {namespace}/{name}");
        let secret = within_time(api.get_opt(name)).await?.ok_or_else(missing)?;
        let password = secret.data.and_then(|mut data| data.remove(PASSWORD));
        let password =
            password.ok_or_else(|| format!("Secret {namespace}/{name} has no `{PASSWORD}`"))?;
        Ok(password.0)
    }
}

/// Returns the answer to a request; the error is a sentence.
async fn within_time<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the API server does not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::api_server::ApiServer;

    #[tokio::test(start_paused = true)]
    async fn labels_and_passwords_are_read_by_name() {
        let server = ApiServer::default();
        let cluster = server.cluster();
        assert!(cluster.node_labels("n1").await.unwrap_err().contains("no Node n1"));
        let node = json!({ "metadata": { "name": "n1", "labels": { "rack": "a" } } });
        server.put("/api/v1/nodes", node);
        assert_eq!(cluster.node_labels("n1").await.unwrap()["rack"], "a");
        let error = cluster.password("sheave", "tor").await.unwrap_err();
        assert_eq!(error, "there is no Secret sheave/tor");
        let mut secret = json!({ "metadata": { "namespace": "sheave", "name": "tor" } });
        server.put("/api/v1/secrets", secret.clone());
        let error = cluster.password("sheave", "tor").await.unwrap_err();
        assert!(error.ends_with("has no `password`"), "{error}");
        secret["data"] = json!({ "password": "czNjcmV0" });
        server.put("/api/v1/secrets", secret);
        assert_eq!(cluster.password("sheave", "tor").await.unwrap(), b"s3cret");
    }
}
