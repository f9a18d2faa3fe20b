{{/* What a table of settings is in TOML. Strings, numbers and booleans are the same as in JSON. */}}
{{- define "mesh.toml" -}}
{{- if kindIs "map" . -}}
{ {{- range $i, $key := keys . | sortAlpha }}{{ if $i }}, {{ end }}{{ toJson $key }} = {{ include "mesh.toml" (get $ $key) }}{{ end -}} }
{{- else if kindIs "slice" . -}}
[ {{- range $i, $each := . }}{{ if $i }}, {{ end }}{{ include "mesh.toml" $each }}{{ end -}} ]
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{- define "mesh.namespace" -}}
{{ .Values.settings.mesh.namespace }}
{{- end }}

{{/* Of everything; and of what a selector is made of. */}}
{{- define "mesh.labels" -}}
{{ include "mesh.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "mesh.selector" -}}
app.kubernetes.io/name: trinity-bus
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kafka.name" -}}
{{ .Release.Name }}-kafka
{{- end }}

{{- define "kafka.bootstrap" -}}
{{- if .Values.kafka.install -}}
{{ include "kafka.name" . }}-kafka-bootstrap:9093
{{- else -}}
{{ required "kafka.bootstrapServers: where is the cluster? Or let kafka.install be true" .Values.kafka.bootstrapServers }}
{{- end -}}
{{- end }}

{{- define "kafka.caSecret" -}}
{{- if .Values.kafka.install -}}
{{ include "kafka.name" . }}-cluster-ca-cert
{{- else -}}
{{ required "kafka.caSecret: the Secret with ca.crt, which the cluster's certificates are signed by" .Values.kafka.caSecret }}
{{- end -}}
{{- end }}

{{/* Copies of each partition, as `trinity-bus topics create` would make: three, or as many as there are brokers. */}}
{{- define "kafka.copies" -}}
{{ min 3 (int .Values.kafka.brokers.replicas) }}
{{- end }}

{{- define "kafka.minInSync" -}}
{{ ternary 2 1 (ge (int (include "kafka.copies" .)) 3) }}
{{- end }}

{{/* The name under which explorers reach the trainer for weights: it listens at the address that this stands for. */}}
{{- define "trainer.host" -}}
{{ .Release.Name }}-trainer-0.{{ .Release.Name }}-trainer.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{/* Of a pod, and of a container: the profile "restricted" of Kubernetes, and a root file system that nobody writes. */}}
{{- define "pod.security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "container.security" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "image.suffix" -}}
{{ eq .Values.device "gpu" | ternary "-gpu" "" }}
{{- end }}

{{/* The image of a service: base for those without a model, else with the device's own packages. */}}
{{- define "service.image" -}}
{{- $image := get (dict "coordinator" "base" "taskset" "base" "trainer" "trainer") .name | default "explorer" -}}
{{- $suffix := eq $image "base" | ternary "" (include "image.suffix" .root) -}}
{{ .root.Values.image.repository }}/{{ $image }}:{{ .root.Values.image.tag }}{{ $suffix }}
{{- end }}
