{{- define "cachetier.labels" -}}
app.kubernetes.io/name: {{ .Values.name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "cachetier.selector" -}}
app.kubernetes.io/name: {{ .Values.name }}
{{- end }}

{{- define "cachetier.image" -}}
{{- $image := .Values.image -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end }}

{{- define "cachetier.mount" -}}/var/cache/cachetier{{- end }}

{{- /* The root of a volume is open to a group: a directory of its own lies in it. */ -}}
{{- define "cachetier.cacheDir" -}}
{{ include "cachetier.mount" . }}{{ if eq .Values.cache.kind "localVolume" }}/store{{ end }}
{{- end }}

{{- define "cachetier.socket" -}}{{ .Values.socket.hostPath }}/cachetier.sock{{- end }}

{{- /* preStop + notice + grace + 10, rounded up to a minute: docs/operations.md. */ -}}
{{- define "cachetier.stopSeconds" -}}
{{- $leave := .Values.leave -}}
{{- $needed := add (int $leave.preStopSeconds) (int $leave.noticeSeconds) (int $leave.graceSeconds) 10 -}}
{{- mul 60 (div (add $needed 59) 60) -}}
{{- end }}

{{- /* The environment of the service. */ -}}
{{- define "cachetier.environment" -}}
CACHETIER_CACHE_DIR: {{ include "cachetier.cacheDir" . }}
CACHETIER_SOCKET: {{ include "cachetier.socket" . }}
{{- $uids := list }}
{{- range .Values.allowedUids }}{{ $uids = append $uids (int64 .) }}{{ end }}
{{- with $uids }}
CACHETIER_ALLOWED_UIDS: {{ join "," . | quote }}
{{- end }}
CACHETIER_CAPACITY: {{ .Values.capacity | quote }}
{{- if .Values.tls.secretName }}
CACHETIER_HTTP: 0.0.0.0:7070
CACHETIER_TLS: /etc/cachetier/tls/tls.crt,/etc/cachetier/tls/tls.key{{ with .Values.tls.clientCa }},/etc/cachetier/tls/{{ . }}{{ end }}
{{- else }}
CACHETIER_HTTP: http://0.0.0.0:7070
{{- end }}
CACHETIER_HEALTH: 0.0.0.0:7071
CACHETIER_REMOTE: {{ .Values.remote | quote }}
CACHETIER_NOTICE: "{{ .Values.leave.noticeSeconds }}s"
CACHETIER_GRACE: "{{ .Values.leave.graceSeconds }}s"
{{- with .Values.tenants }}
CACHETIER_PRINCIPAL: {{ toJson . | quote }}
{{- end }}
{{- range $name, $value := .Values.settings }}
CACHETIER_{{ upper $name }}: {{ include "cachetier.written" $value | quote }}
{{- end }}
{{- end }}

{{- /* The peers; Kubernetes puts the pod's zone in place of $(ZONE). */ -}}
{{- define "cachetier.peers" -}}
{{- $tls := .Values.tls.secretName -}}
{{- $trust := ternary (printf "/etc/cachetier/tls/%s" .Values.peers.ca) "/etc/cachetier/peers/token" (not (empty $tls)) -}}
{{- $table := dict "nodes" (list (printf "%s-peers:7072" .Values.name)) "trust" $trust "domain" "$(ZONE)" -}}
{{- $_ := set $table "listen" (printf "%s0.0.0.0:7072" (ternary "http://" "" (empty $tls))) -}}
{{- toJson (merge (omit .Values.peers "enabled" "ca") $table) -}}
{{- end }}

{{- /* A setting as a variable says it: tables are JSON, lists have commas. */ -}}
{{- define "cachetier.written" -}}
{{- if kindIs "bool" . -}}{{ ternary "on" "off" . }}
{{- else if kindIs "float64" . -}}{{ if eq (float64 (int64 .)) . }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- else if kindIs "map" . -}}{{ toJson . }}
{{- else if kindIs "slice" . -}}{{ if kindIs "map" (first .) }}{{ toJson . }}{{ else }}{{ join "," . }}{{ end }}
{{- else -}}{{ . }}
{{- end -}}
{{- end }}

{{- /* A StatefulSet's pod must not come back to a node that is cordoned: its volume waits there. */ -}}
{{- define "cachetier.tolerations" -}}
{{- if .Values.tolerations -}}
{{ toYaml .Values.tolerations }}
{{- else if eq .Values.cache.kind "localVolume" -}}
- { operator: Exists, effect: NoExecute }
- { key: nvidia.com/gpu, operator: Exists, effect: NoSchedule }
{{- else -}}
- operator: Exists
{{- end -}}
{{- end }}

{{- define "cachetier.directoryType" -}}
{{ ternary "DirectoryOrCreate" "Directory" .Values.createDirectories }}
{{- end }}

{{- define "cachetier.directories" -}}
{{- if eq .Values.cache.kind "hostPath" -}}
install -d -m 0700 -o 10001 -g 10001 {{ include "cachetier.mount" . }}
{{ end -}}
install -d -m 0755 -o 10001 -g 10001 {{ .Values.socket.hostPath }}
{{- range .Values.tenants }}{{ with .socket }}
install -d -m 0755 -o 10001 -g 10001 {{ dir . }}
{{- end }}{{ end }}
{{- end }}

{{- /* The pod of the service: the same in a DaemonSet and in a StatefulSet. */ -}}
{{- define "cachetier.pod" -}}
metadata:
  labels:
    {{- include "cachetier.selector" . | nindent 4 }}
  annotations:
    checksum/config: {{ include "cachetier.environment" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  terminationGracePeriodSeconds: {{ include "cachetier.stopSeconds" . }}
  priorityClassName: {{ .Values.priorityClass.name }}
  automountServiceAccountToken: false
  {{- with .Values.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  enableServiceLinks: false  # CACHETIER_* variables of Services are no settings
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  tolerations:
    {{- include "cachetier.tolerations" . | nindent 4 }}
  {{- if eq .Values.cache.kind "localVolume" }}
  affinity:  # one on a node: they share the directory of the socket
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        - topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "cachetier.selector" . | nindent 14 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    {{- if or (eq .Values.cache.kind "localVolume") .Values.tls.secretName .Values.peers.enabled }}
    fsGroup: 10001  # volumes but those of the host are root's
    fsGroupChangePolicy: OnRootMismatch
    {{- end }}
    seccompProfile: { type: RuntimeDefault }
  {{- if .Values.createDirectories }}
  initContainers:
    - name: directories
      image: {{ include "cachetier.image" . }}
      {{- with .Values.image.pullPolicy }}
      imagePullPolicy: {{ . }}
      {{- end }}
      command:
        - sh
        - -ec
        - |
          {{- include "cachetier.directories" . | nindent 10 }}
      securityContext:
        runAsNonRoot: false
        runAsUser: 0
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL], add: [CHOWN, DAC_OVERRIDE, FOWNER] }
      volumeMounts:
        {{- if eq .Values.cache.kind "hostPath" }}
        - { name: cache, mountPath: {{ include "cachetier.mount" . }} }
        {{- end }}
        - { name: socket, mountPath: {{ .Values.socket.hostPath }} }
  {{- end }}
  containers:
    - name: cachetier
      image: {{ include "cachetier.image" . }}
      {{- with .Values.image.pullPolicy }}
      imagePullPolicy: {{ . }}
      {{- end }}
      envFrom:
        - configMapRef: { name: {{ .Values.name }} }
      env:
        - name: CACHETIER_SCRAPE_TOKEN  # for Prometheus; the owner's is <cache_dir>/token
          valueFrom: { secretKeyRef: { name: {{ .Values.secret.name }}, key: scrape-token } }
        {{- if .Values.secret.accessKeys }}
        - name: AWS_ACCESS_KEY_ID
          valueFrom: { secretKeyRef: { name: {{ .Values.secret.name }}, key: access-key } }
        - name: AWS_SECRET_ACCESS_KEY
          valueFrom: { secretKeyRef: { name: {{ .Values.secret.name }}, key: secret-key } }
        {{- end }}
        {{- if .Values.peers.enabled }}
        - name: ZONE
          valueFrom: { fieldRef: { fieldPath: "metadata.labels['topology.kubernetes.io/zone']" } }
        - name: CACHETIER_PEERS
          value: {{ include "cachetier.peers" . | squote }}
        {{- end }}
        {{- with .Values.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - { name: http, containerPort: 7070 }
        - { name: health, containerPort: 7071 }
        {{- if .Values.peers.enabled }}
        - { name: peers, containerPort: 7072 }
        {{- end }}
      {{- if gt (int .Values.leave.preStopSeconds) 0 }}
      lifecycle:
        preStop:
          exec:
            command: [cachetier, flush, --timeout, "{{ .Values.leave.preStopSeconds }}s"]
      {{- end }}
      startupProbe:  # recovery takes seconds; half an hour is for a slow disk with millions of files
        httpGet: { path: /livez, port: health }
        periodSeconds: 2
        failureThreshold: 900
      readinessProbe:
        httpGet: { path: /readyz, port: health }
        periodSeconds: 10
      livenessProbe:
        httpGet: { path: /livez, port: health }
        periodSeconds: 20
        timeoutSeconds: 5
        failureThreshold: 6
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL] }
      volumeMounts:
        - { name: cache, mountPath: {{ include "cachetier.mount" . }} }
        - { name: socket, mountPath: {{ .Values.socket.hostPath }} }
        - { name: tmp, mountPath: /tmp }
        {{- if .Values.tls.secretName }}
        - { name: tls, mountPath: /etc/cachetier/tls, readOnly: true }
        {{- else if .Values.peers.enabled }}
        - { name: peers, mountPath: /etc/cachetier/peers, readOnly: true }
        {{- end }}
  volumes:
    # `Directory`: a pod that waits for its disk is better than a cache on the root disk.
    {{- if eq .Values.cache.kind "hostPath" }}
    - name: cache
      hostPath: { path: {{ .Values.cache.hostPath }}, type: {{ include "cachetier.directoryType" . }} }
    {{- end }}
    - name: socket
      hostPath: { path: {{ .Values.socket.hostPath }}, type: {{ include "cachetier.directoryType" . }} }
    - name: tmp
      emptyDir: { medium: Memory, sizeLimit: 64Mi }
    {{- if .Values.tls.secretName }}
    - name: tls
      secret: { secretName: {{ .Values.tls.secretName }}, defaultMode: 0440 }
    {{- else if .Values.peers.enabled }}
    - name: peers
      secret: { secretName: {{ .Values.secret.name }}, defaultMode: 0440, items: [{ key: peers-token, path: token }] }
    {{- end }}
{{- end }}
