{{/*
The operator's settings as JSON, which is YAML without anything to guess: '00123' stays a string, 1000000 a number.
Values have the settings' names in camelCase.
*/}}
{{- define "speedrun.settings" -}}
{{- $settings := dict "log_format" .Values.logFormat "log_level" .Values.logLevel -}}
{{- $_ := set $settings "health_address" (printf "0.0.0.0:%d" (int64 .Values.healthPort)) -}}
{{- with .Values.clusterId -}}
{{- $_ := set $settings "cluster_id" . -}}
{{- end -}}
{{- range $group := list "slurm" "pods" "prepare" "cache" "policy" -}}
{{- $_ := set $settings $group (include "speedrun.snake" (index $.Values $group) | fromJson) -}}
{{- end -}}
{{- $watch := omit .Values.watch "createNamespaces" -}}
{{- $_ := set $settings "watch" (include "speedrun.snake" $watch | fromJson) -}}
{{- $login := omit .Values.login "keySecret" "keySecretKey" "knownHostsSecret" "knownHostsSecretKey" -}}
{{- with .Values.login.keySecret -}}
{{- $_ := set $login "keyFile" "/etc/speedrun/login/key" -}}
{{- end -}}
{{- with .Values.login.knownHostsSecret -}}
{{- $_ := set $login "knownHostsFile" "/etc/speedrun/login/known_hosts" -}}
{{- end -}}
{{- $_ := set $settings "login" (include "speedrun.snake" $login | fromJson) -}}
{{- with .Values.logins -}}
{{- $bySecret := dict -}}
{{- $byRoot := dict -}}
{{- range $namespace, $login := . -}}
{{- $same := omit $login "secret" | toJson -}}
{{- if ne $same (dig $login.secret $same $bySecret) -}}
{{- fail (printf "logins.%s names a Secret, %s, that another of logins names with another root, host or port: one login has one of each" $namespace $login.secret) -}}
{{- end -}}
{{- $_ := set $bySecret $login.secret $same -}}
{{- $root := default $.Values.slurm.root $login.root -}}
{{- if and (hasPrefix "/" $root) (ne $login.secret (dig $root $login.secret $byRoot)) -}}
{{- fail (printf "logins.%s has the root %s of another login: set logins.%s.root to a directory that only its own user writes" $namespace $root $namespace) -}}
{{- end -}}
{{- $_ := set $byRoot $root $login.secret -}}
{{- end -}}
{{- $_ := set $settings "logins" . -}}
{{- $_ := set $settings "logins_read_seconds" $.Values.loginsReadSeconds -}}
{{- end -}}
{{- if .Values.platform.url -}}
{{- $platform := omit .Values.platform "tokenSecret" "tokenSecretKey" -}}
{{- $own := dict "readinessOnly" true "tokenFile" "/etc/speedrun/platform/token" -}}
{{- $_ := set $settings "platform" (include "speedrun.snake" (merge $own $platform) | fromJson) -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
{{- if eq (int64 .Values.healthPort) (int64 .Values.metrics.port) -}}
{{- fail (printf "healthPort and metrics.port are both %d: two listeners need two ports" (int64 .Values.healthPort)) -}}
{{- end -}}
{{- $address := printf "0.0.0.0:%d" (int64 .Values.metrics.port) -}}
{{- $_ := set $settings "metrics" (dict "address" $address "speedruns" .Values.metrics.speedruns) -}}
{{- end -}}
{{- $_ := set $settings "deployment" (dict "name" (include "speedrun.name" .) "namespace" .Release.Namespace) -}}
{{- toPrettyJson $settings -}}
{{- end -}}

{{/* A group of values under the names that the settings have. */}}
{{- define "speedrun.snake" -}}
{{- $named := dict -}}
{{- range $name, $value := . -}}
{{- $_ := set $named (snakecase $name) $value -}}
{{- end -}}
{{- toJson $named -}}
{{- end -}}
