{{/* What the operator may do where Speedruns are. */}}
{{- define "speedrun.rules" -}}
- apiGroups: [speedrun.dev]
  resources: [speedruns]
  verbs: [get, list, watch, patch, delete] # delete: what is over its ttlSecondsAfterFinished
- apiGroups: [speedrun.dev]
  resources: [speedruns/status]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, create, patch]
{{- with .Values.rbac.secretNames }}
- apiGroups: [""]
  resources: [secrets]
  {{- if not (has "*" .) }}
  resourceNames:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  verbs: [get]
{{- end }}
{{- if .Values.pods.enabled }}
- apiGroups: [""]
  resources: [pods]
  verbs: [create, get, list, watch, delete]
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [list] # why a pod's volumes are not mounted
{{- end }}
{{- end -}}

{{/* The cluster's identity, where no setting gives it one. */}}
{{- define "speedrun.clusterIdRule" -}}
- apiGroups: [""]
  resources: [namespaces]
  resourceNames: [kube-system]
  verbs: [get]
{{- end -}}

{{/* What it may do in its own namespace: say on its Deployment what is wrong, and read the Secrets of logins. */}}
{{- define "speedrun.ownRules" -}}
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [apps]
  resources: [deployments]
  resourceNames: [{{ include "speedrun.name" . }}]
  verbs: [get]
{{- with .Values.logins }}
{{- $secrets := list }}
{{- range . }}
{{- $secrets = append $secrets .secret }}
{{- end }}
- apiGroups: [""]
  resources: [secrets]
  resourceNames:
    {{- $secrets | uniq | sortAlpha | toYaml | nindent 4 }}
  verbs: [get]
{{- end }}
{{- end -}}

{{- define "speedrun.nodeRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
{{- end -}}

{{- define "speedrun.tokenRules" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end -}}
