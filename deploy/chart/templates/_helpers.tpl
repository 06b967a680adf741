{{/* Labels that select Sheave's pods. */}}
{{- define "sheave.selector" -}}
app.kubernetes.io/name: sheave
app.kubernetes.io/instance: {{ .Values.name }}
{{- end }}

{{/* Labels of every object. */}}
{{- define "sheave.labels" -}}
{{ include "sheave.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* Labels that select the pods of transparent mode. */}}
{{- define "sheave.transparentSelector" -}}
app.kubernetes.io/name: sheave-transparent
app.kubernetes.io/instance: {{ .Values.name }}
{{- end }}

{{/* Labels that select the pods of the layer-4 data path. */}}
{{- define "sheave.l4Selector" -}}
app.kubernetes.io/name: sheave-l4
app.kubernetes.io/instance: {{ .Values.name }}
{{- end }}

{{- define "sheave.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Values.name }}
{{- end }}

{{/* Secret with the authorities that issue the certificates of replicas. */}}
{{- define "sheave.authoritySecret" -}}
{{ .Values.name }}-replicas
{{- end }}

{{/* Name of the Service of the API of metrics, and of what belongs to it. */}}
{{- define "sheave.metricsApi" -}}
{{ .Values.name }}-metrics-api
{{- end }}

{{/* Version of an API of metrics, by the first word of its group. */}}
{{- define "sheave.apiVersion" -}}
{{ if eq . "external" }}v1beta1{{ else }}v1beta2{{ end }}
{{- end }}

{{/* Not empty if pods mount a Secret with the certificate of replicas. */}}
{{- define "sheave.mountsCertificates" -}}
{{- if and .Values.leases.enabled .Values.leases.certificateSecret }}yes{{ end }}
{{- end }}

{{/* The spec of a Service in front of all pods, without its ports. */}}
{{- define "sheave.front" -}}
type: {{ .Values.service.type }}
{{- if ne .Values.service.type "ClusterIP" }}
externalTrafficPolicy: {{ .Values.service.externalTrafficPolicy }}
{{- end }}
{{- if eq .Values.service.type "LoadBalancer" }}
{{- with .Values.service.loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- end }}
selector: {{- include "sheave.selector" . | nindent 2 }}
{{- end }}

{{/* Template of the Services of all Gateways, as JSON. */}}
{{- define "sheave.template" -}}
{{- $metadata := dict "labels" (include "sheave.labels" . | fromYaml) "annotations" .Values.service.annotations -}}
{{- dict "metadata" $metadata "spec" (include "sheave.front" . | fromYaml) | toJson -}}
{{- end }}

{{/* Settings that exclude each other. */}}
{{- define "sheave.check" -}}
{{- if and .Values.transparent.enabled .Values.rbac.namespaces }}
{{- fail "transparent.enabled reads the Services of all namespaces: leave rbac.namespaces empty, or install it apart" }}
{{- end }}
{{- if and .Values.l4.enabled .Values.rbac.namespaces }}
{{- fail "l4.enabled reads the Services of all namespaces: leave rbac.namespaces empty, or install it apart" }}
{{- end }}
{{- if not (or .Values.transparent.enabled .Values.gateways.enabled .Values.l4.enabled) }}
{{- fail "nothing to install: set gateways.enabled, transparent.enabled or l4.enabled to true" }}
{{- end }}
{{- if and .Values.addresses.pool (not .Values.hostNetwork) }}
{{- fail "addresses.pool needs hostNetwork: true, for nodes carry those addresses" }}
{{- end }}
{{- if and .Values.loadBalancer.enabled (not .Values.hostNetwork) }}
{{- fail "loadBalancer.enabled needs hostNetwork: true, for nodes carry those addresses" }}
{{- end }}
{{- if and .Values.loadBalancer.enabled .Values.service.perGateway }}
{{- fail "loadBalancer.enabled gives Services addresses of nodes: set service.perGateway to false" }}
{{- end }}
{{- if and .Values.loadBalancer.enabled .Values.service.enabled (eq .Values.service.type "LoadBalancer") }}
{{- fail "loadBalancer.enabled would serve Sheave's own Service: set service.enabled to false" }}
{{- end }}
{{- if and .Values.loadBalancer.default (not .Values.loadBalancer.enabled) }}
{{- fail "loadBalancer.default needs loadBalancer.enabled: true" }}
{{- end }}
{{- if and .Values.addresses.pool .Values.service.perGateway }}
{{- fail "addresses.pool gives each Gateway an address: set service.perGateway to false" }}
{{- end }}
{{- if and .Values.addresses.pool .Values.service.enabled (eq .Values.service.type "LoadBalancer") }}
{{- fail "addresses.pool gives each Gateway an address: set service.enabled to false" }}
{{- end }}
{{- end }}
