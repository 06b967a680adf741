"""API contents for pods: current Secrets and ConfigMaps, and valid tokens."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping

from tests.cluster.api import Api, ApiError, ApiUnreachable, Object, follow
from tests.cluster.kubelet.environment import MissingSource

KINDS = ("secrets", "configmaps")
# Share of a token's lifetime after which it is renewed.
RENEWED_AFTER = 0.8


class ApiContents:
    """Cache of the whole cluster's Secrets and ConfigMaps, which is small."""

    def __init__(self, api: Api, changed: Callable[[str], None]) -> None:
        self._api = api
        self._changed = changed
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._tokens: dict[tuple[str, str | None, int], tuple[str, float]] = {}
        self._synced = {kind: threading.Event() for kind in KINDS}

    def start(self) -> None:
        """Returns when the cache is complete."""
        for kind in KINDS:
            threading.Thread(target=self._follow, args=(kind,), daemon=True).start()
        for event in self._synced.values():
            event.wait()

    def data(self, kind: str, namespace: str, name: str) -> Mapping[str, bytes] | None:
        item = self._objects.get((kind, namespace, name))
        if item is None:
            return None
        encoded = item.get("data") or {} if kind == "secrets" else item.get("binaryData") or {}
        plain = {} if kind == "secrets" else item.get("data") or {}
        decoded = {key: base64.b64decode(value) for key, value in encoded.items()}
        return decoded | {key: value.encode() for key, value in plain.items()}

    def token(self, pod: Object, audience: str | None, seconds: int) -> str:
        metadata = pod["metadata"]
        key = (metadata["uid"], audience, seconds)
        token, renewed_at = self._tokens.get(key, ("", 0.0))
        if time.monotonic() < renewed_at:
            return token
        account = pod["spec"].get("serviceAccountName", "default")
        bound = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        audiences = {"audiences": [audience]} if audience else {}
        parameters = {"expirationSeconds": seconds, "boundObjectRef": bound, **audiences}
        path = f"/api/v1/namespaces/{metadata['namespace']}/serviceaccounts/{account}/token"
        try:
            answer = self._api.post(path, {"spec": parameters})
        except (ApiError, ApiUnreachable) as error:
            if token:
                return token
            raise MissingSource(f"no token of service account {account}: {error}") from error
        self._tokens[key] = answer["status"]["token"], time.monotonic() + RENEWED_AFTER * seconds
        return self._tokens[key][0]

    def forget(self, uid: str) -> None:
        """Deletes the tokens of a removed pod."""
        for key in [key for key in self._tokens if key[0] == uid]:
            del self._tokens[key]

    def _follow(self, kind: str) -> None:
        def on_change(item: Object) -> None:
            self._objects[_key(kind, item)] = item
            self._changed(item["metadata"]["namespace"])

        def on_delete(item: Object) -> None:
            self._objects.pop(_key(kind, item), None)
            self._changed(item["metadata"]["namespace"])

        follow(self._api, f"/api/v1/{kind}", on_change, on_delete, self._synced[kind].set)


def _key(kind: str, item: Object) -> tuple[str, str, str]:
    return kind, item["metadata"]["namespace"], item["metadata"]["name"]
