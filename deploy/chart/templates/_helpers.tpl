{{/* What selects our pods. */}}
{{- define "sheave.selector" -}}
app.kubernetes.io/name: sheave
app.kubernetes.io/instance: {{ .Values.name }}
{{- end }}

{{/* What every object is labelled with. */}}
{{- define "sheave.labels" -}}
{{ include "sheave.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "sheave.serviceAccount" -}}
{{ .Values.serviceAccount.name | default .Values.name }}
{{- end }}

{{/* Settings that cannot go together. */}}
{{- define "sheave.check" -}}
{{- if and .Values.addresses.pool (not .Values.hostNetwork) }}
{{- fail "addresses.pool needs hostNetwork: true, for nodes carry those addresses" }}
{{- end }}
{{- if and .Values.addresses.pool .Values.service.enabled (eq .Values.service.type "LoadBalancer") }}
{{- fail "addresses.pool gives each Gateway an address: set service.enabled to false" }}
{{- end }}
{{- end }}
