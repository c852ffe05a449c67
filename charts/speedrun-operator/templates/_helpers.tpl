{{/* The whole name of what is installed: `speedrun-operator` for releases `speedrun` and `speedrun-operator`. */}}
{{- define "speedrun.name" -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $name := printf "%s-%s" .Release.Name $chart -}}
{{- if .Values.fullnameOverride -}}
{{- $name = .Values.fullnameOverride -}}
{{- else if hasPrefix (printf "%s-" .Release.Name) (printf "%s-" $chart) -}}
{{- $name = $chart -}}
{{- else if contains $chart .Release.Name -}}
{{- $name = .Release.Name -}}
{{- end -}}
{{- if not (regexMatch "^[a-z]" $name) -}}
{{- fail (printf "%s begins with a digit, and the name of a Service may not: set fullnameOverride" $name) -}}
{{- end -}}
{{- $name | replace "." "-" | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{/* A name that no release in another namespace has, for what lies outside of the release's own. */}}
{{- define "speedrun.clusterName" -}}
{{- printf "%s:%s" .Release.Namespace (include "speedrun.name" .) -}}
{{- end -}}

{{- define "speedrun.account" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else -}}
{{- ternary (include "speedrun.name" .) "default" .Values.serviceAccount.create -}}
{{- end -}}
{{- end -}}

{{- define "speedrun.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "speedrun.labels" -}}
{{ include "speedrun.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "speedrun.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default .Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* The subject of every binding. */}}
{{- define "speedrun.subjects" -}}
subjects:
- kind: ServiceAccount
  name: {{ include "speedrun.account" . | quote }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{- define "speedrun.containerContext" -}}
{{- with .Values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "speedrun.podContext" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
- name: {{ . | quote }}
  {{- end }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The account's token, which the kubelet renews, and what goes with it, at their usual place. */}}
{{- define "speedrun.tokenVolume" -}}
- name: account
  projected:
    defaultMode: 0440
    sources:
    - serviceAccountToken:
        path: token
        expirationSeconds: {{ int64 .Values.serviceAccount.tokenExpirationSeconds }}
    - configMap:
        name: kube-root-ca.crt
        items:
        - key: ca.crt
          path: ca.crt
    - downwardAPI:
        items:
        - path: namespace
          fieldRef:
            apiVersion: v1
            fieldPath: metadata.namespace
{{- end -}}

{{- define "speedrun.tokenMount" -}}
- name: account
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end -}}
