//! HorizontalPodAutoscalers of a namespace, for reports to people.

use kube_client::Api;
use kube_client::api::ListParams;
use kube_core::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use crate::ClusterClient;
use crate::api_extension::{ApiExtensionError, answer};

/// Most autoscalers of one namespace that are read.
const MAX_AUTOSCALERS: u32 = 1000;

impl ClusterClient {
    /// Returns the HorizontalPodAutoscalers (`autoscaling/v2`) of a namespace.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn autoscalers(&self, namespace: &str) -> Result<Vec<Value>, ApiExtensionError> {
        let resource = ApiResource {
            group: "autoscaling".to_owned(),
            version: "v2".to_owned(),
            api_version: "autoscaling/v2".to_owned(),
            kind: "HorizontalPodAutoscaler".to_owned(),
            plural: "horizontalpodautoscalers".to_owned(),
        };
        let client = self.client.clone();
        let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &resource);
        let found = answer(api.list(&ListParams::default().limit(MAX_AUTOSCALERS))).await?;
        let whole = |object: DynamicObject| {
            let mut value = object.data;
            value["metadata"] = json!({ "name": object.metadata.name });
            value
        };
        Ok(found.items.into_iter().map(whole).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::api_server::ApiServer;

    #[tokio::test]
    async fn autoscalers_of_the_namespace_are_returned_whole() {
        let server = ApiServer::default();
        let collection = "/apis/autoscaling/v2/horizontalpodautoscalers";
        for namespace in ["shop", "other"] {
            let metadata = json!({ "namespace": namespace, "name": "web" });
            let object = json!({
                "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                "metadata": metadata, "spec": { "maxReplicas": 7 }, "status": { "currentReplicas": 2 },
            });
            server.put(collection, object);
        }
        let found = server.cluster().autoscalers("shop").await.unwrap();
        let [web] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(web["metadata"]["name"], "web");
        assert_eq!(
            (&web["spec"]["maxReplicas"], &web["status"]["currentReplicas"]),
            (&7.into(), &2.into())
        );
    }
}
