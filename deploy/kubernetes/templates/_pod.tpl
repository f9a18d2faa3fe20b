{{/*
The pod of a service. Given are:

  root     the chart's context
  name     of the service, as `trinity-bus run` and the values have it
  role     of its user on the cluster, where that is not its name
  model    whether it needs the model's folder
  secrets  variable of a setting -> key of the Secret `keys.secret`
  env      variables with values that the chart knows
  volumes, mounts, ports   more of each
  command  in the place of the image's own
  args     in the place of `run` and the name
  follows  whether it is a rank that follows another pod's: it answers no probes, and knows of no log

Secrets are files, and variables say where: nothing secret is in the environment.
*/}}
{{- define "service.pod" -}}
{{- $root := .root -}}
{{- $values := index $root.Values .name -}}
{{- $user := printf "%s.%s" (include "mesh.namespace" $root) (.role | default .name) -}}
{{- $lost := list "tmp" "home" -}}
{{- if and .model (not $root.Values.model.claim) }}{{ $lost = append $lost "model" }}{{ end -}}
{{- range .volumes }}{{ if hasKey . "emptyDir" }}{{ $lost = append $lost .name }}{{ end }}{{ end -}}
{{- $annotations := dict "trinity-bus/settings" (include "mesh.settings" $root | sha256sum)
      "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes" (join "," $lost) -}}
metadata:
  labels:
    {{- include "mesh.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .name }}
  # The cluster autoscaler leaves every node that has a pod with volumes of the node's own, but for those that may be lost.
  annotations: {{- merge (deepCopy ($values.annotations | default dict)) $annotations | toYaml | nindent 4 }}
spec:
  serviceAccountName: {{ $root.Release.Name }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  # Something collects what runners and ranks leave behind.
  shareProcessNamespace: true
  # Above the 30 s after which a service that does not come to an end gives up by itself; an explorer, once it has drained.
  terminationGracePeriodSeconds: {{ eq .name "explorer" | ternary (include "explorer.drain" $root) 0 | add 45 }}
  securityContext: {{- include "pod.security" $root | nindent 4 }}
  {{- with $root.Values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- range $key := list "nodeSelector" "tolerations" "affinity" "priorityClassName" "runtimeClassName" }}
  {{- with get $values $key }}
  {{ $key }}: {{ toYaml . | nindent 4 }}
  {{- end }}
  {{- end }}
  {{- with $root.Values.topologySpread }}
  topologySpreadConstraints:
    {{- range . }}
    - topologyKey: {{ .topologyKey }}
      maxSkew: {{ .maxSkew | default 1 }}
      whenUnsatisfiable: {{ .whenUnsatisfiable | default "ScheduleAnyway" }}
      labelSelector:
        matchLabels:
          {{- include "mesh.selector" $root | nindent 10 }}
          app.kubernetes.io/component: {{ $.name }}
    {{- end }}
  {{- end }}
  {{- if and .model (not $root.Values.model.claim) }}
  initContainers:
    # The same in every pod: its weights follow from a seed.
    - name: tiny-model
      image: {{ include "service.image" (dict "root" $root "name" "trainer") }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      args: ["model", "/model/tiny"]
      env: [{name: OMP_NUM_THREADS, value: "1"}]
      securityContext: {{- include "container.security" $root | nindent 8 }}
      resources: {requests: {cpu: 100m, memory: 512Mi}, limits: {cpu: "2", memory: 2Gi}}
      volumeMounts:
        - {name: model, mountPath: /model}
        - {name: tmp, mountPath: /tmp}
        - {name: home, mountPath: /home/trinity}
  {{- end }}
  containers:
    - name: {{ .name }}
      image: {{ include "service.image" . }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      {{- with .command }}
      command: {{ toJson . }}
      {{- end }}
      args: {{ .args | default (list "run" .name) | toJson }}
      securityContext: {{- include "container.security" $root | nindent 8 }}
        {{- with $values.securityContext }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      env:
        - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
        - {name: TRINITY_BUS_CONFIG, value: /etc/trinity-bus/mesh.toml}
        {{- if not .follows }}
        - {name: TRINITY_BUS_KAFKA__BOOTSTRAP_SERVERS, value: {{ include "kafka.bootstrap" $root | quote }}}
        - {name: TRINITY_BUS_KAFKA__SECURITY_PROTOCOL, value: SASL_SSL}
        - {name: TRINITY_BUS_KAFKA__SASL_MECHANISM, value: SCRAM-SHA-512}
        - {name: TRINITY_BUS_KAFKA__SASL_USERNAME, value: {{ $user | quote }}}
        - {name: TRINITY_BUS_KAFKA__SASL_PASSWORD_FILE, value: /run/secrets/trinity-bus/kafka-password}
        - {name: TRINITY_BUS_KAFKA__SSL_CAFILE, value: /run/secrets/trinity-bus/kafka-ca.crt}
        {{- end }}
        # The kubelet asks from outside of the pod.
        - {name: TRINITY_BUS_HEALTH__HOST, value: 0.0.0.0}
        - {name: TRINITY_BUS_HEALTH__PORT, value: "8080"}
        {{- with $root.Values.telemetry.otlpEndpoint }}
        - {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
        - {name: OTEL_EXPORTER_OTLP_PROTOCOL, value: http/protobuf}
        {{- end }}
        {{- range $variable, $value := .env }}
        - {name: {{ $variable }}, value: {{ $value | quote }}}
        {{- end }}
        {{- range $variable, $key := .secrets }}
        - {name: {{ $variable }}_FILE, value: /run/secrets/trinity-bus/{{ $key }}}
        {{- end }}
        {{- range $variable, $value := $values.env }}
        - {name: {{ $variable }}, value: {{ $value | quote }}}
        {{- end }}
      ports:
        - {name: health, containerPort: 8080}
        {{- range $name, $port := .ports }}
        - {name: {{ $name }}, containerPort: {{ $port }}}
        {{- end }}
      {{- if not .follows }}
      # A lost broker is no reason to restart: that makes a service not ready, and never not alive.
      startupProbe:
        httpGet: {path: /livez, port: health}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 120
      livenessProbe:
        httpGet: {path: /livez, port: health}
        periodSeconds: 15
        timeoutSeconds: 15
        failureThreshold: 4
      readinessProbe:
        httpGet: {path: /readyz, port: health}
        periodSeconds: 5
        timeoutSeconds: 15
      {{- end }}
      {{- if eq .name "gateway" }}
      # Whoever still sends here has heard by then that it goes.
      lifecycle: {preStop: {exec: {command: [sleep, "5"]}}}
      {{- end }}
      resources: {{- required (printf "%s.resources" .name) $values.resources | toYaml | nindent 8 }}
      volumeMounts:
        - {name: settings, mountPath: /etc/trinity-bus, readOnly: true}
        - {name: secrets, mountPath: /run/secrets/trinity-bus, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        - {name: home, mountPath: /home/trinity}
        {{- if .model }}
        - {name: model, mountPath: /model, readOnly: true}
        {{- end }}
        {{- with .mounts }}{{ toYaml . | nindent 8 }}{{ end }}
        {{- with $values.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    - name: settings
      configMap: {name: {{ $root.Release.Name }}-settings}
    - name: secrets
      projected:
        defaultMode: 0440
        sources:
          {{- if not .follows }}
          - secret:
              name: {{ $user }}
              items: [{key: password, path: kafka-password}]
          - secret:
              name: {{ include "kafka.caSecret" $root }}
              items: [{key: ca.crt, path: kafka-ca.crt}]
          {{- end }}
          {{- with .secrets }}
          - secret:
              name: {{ required "keys.secret: the Secret with the keys of gateway, explorers, console and ranks" $root.Values.keys.secret }}
              items:
                {{- range $variable, $key := . }}
                - {key: {{ $key }}, path: {{ $key }}}
                {{- end }}
          {{- end }}
          {{- with .certificate }}
          - secret:
              name: {{ $root.Release.Name }}-weights
              items:
                {{- range . }}
                - {key: {{ . }}, path: weights-{{ . }}}
                {{- end }}
          {{- end }}
    - {name: tmp, emptyDir: {sizeLimit: {{ $root.Values.scratch }}}}
    - {name: home, emptyDir: {sizeLimit: {{ $root.Values.scratch }}}}
    {{- if .model }}
    - name: model
      {{- if $root.Values.model.claim }}
      persistentVolumeClaim: {claimName: {{ $root.Values.model.claim }}, readOnly: true}
      {{- else }}
      emptyDir: {sizeLimit: 1Gi}
      {{- end }}
    {{- end }}
    {{- with .volumes }}{{ toYaml . | nindent 4 }}{{ end }}
    {{- with $values.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}
