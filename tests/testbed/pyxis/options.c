#include "options.h"

#include <stdlib.h>
#include <string.h>

static char *texts[TEXT_OPTIONS];
static int flags[FLAG_OPTIONS] = { -1, -1, -1, -1, -1 };

static int take_text(int which, const char *value, int remote);
static int take_flag(int which_and_value, const char *value, int remote);

#define ON(flag) ((flag) * 2 + 1)
#define OFF(flag) ((flag) * 2)

#define TEXT(name, hint, help, which) { name, hint, "[pyxis] " help, 1, which, take_text }
#define FLAG(name, help, which) { name, NULL, "[pyxis] " help, 0, which, take_flag }

/* Slurm keeps pointers into this table; its strings are not const there. */
static struct spank_option table[] = {
	TEXT("container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "the image for the container filesystem", IMAGE),
	TEXT("container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "bind mount[s] inside the container", MOUNTS),
	TEXT("container-workdir", "PATH", "working directory inside the container", WORKDIR),
	TEXT("container-name", "NAME", "name to use for saving and loading the container on the host", NAME),
	TEXT("container-save", "PATH", "save the container state to a file on the remote host", SAVE),
	TEXT("container-env", "NAME[,NAME...]", "variables that the host's values override", ENV),
	TEXT("container-unshare", "NS[,NS...]", "new namespaces for the container: net, ipc, uts", UNSHARE),
	FLAG("container-mount-home", "bind mount the user's home directory", ON(MOUNT_HOME)),
	FLAG("no-container-mount-home", "do not bind mount the user's home directory", OFF(MOUNT_HOME)),
	FLAG("container-remap-root", "be root inside the container", ON(REMAP_ROOT)),
	FLAG("no-container-remap-root", "do not be root inside the container", OFF(REMAP_ROOT)),
	FLAG("container-entrypoint", "execute the image's entrypoint", ON(ENTRYPOINT)),
	FLAG("no-container-entrypoint", "do not execute the image's entrypoint", OFF(ENTRYPOINT)),
	FLAG("container-entrypoint-log", "print the entrypoint's output", ON(ENTRYPOINT_LOG)),
	FLAG("container-writable", "make the container filesystem writable", ON(WRITABLE)),
	FLAG("container-readonly", "make the container filesystem read-only", OFF(WRITABLE)),
	SPANK_OPTIONS_TABLE_END
};

static const char *const text_names[TEXT_OPTIONS] = {
	"container-image", "container-mounts", "container-workdir", "container-name",
	"container-save", "container-env", "container-unshare",
};
static const char *const flag_names[FLAG_OPTIONS] = {
	"container-mount-home", "container-remap-root", "container-entrypoint",
	"container-entrypoint-log", "container-writable",
};
static const char *const text_variables[TEXT_OPTIONS] = {
	"PYXIS_CONTAINER_IMAGE", "PYXIS_CONTAINER_MOUNTS", "PYXIS_CONTAINER_WORKDIR", "PYXIS_CONTAINER_NAME",
	"PYXIS_CONTAINER_SAVE", "PYXIS_CONTAINER_ENV", "PYXIS_CONTAINER_UNSHARE",
};

const char *option_text(enum text_option which) { return texts[which]; }

int option_flag(enum flag_option which) { return flags[which]; }

static bool list_has(const char *list, const char *name)
{
	size_t length = strlen(name);
	for (const char *at = list; at != NULL && *at != '\0';) {
		size_t entry = strcspn(at, ",");
		if (entry == length && strncmp(at, name, length) == 0)
			return true;
		at += entry;
		at += *at == ',';
	}
	return false;
}

bool option_env_has(const char *name) { return list_has(texts[ENV], name); }

bool option_image_is_file(void) { return texts[IMAGE] != NULL && strspn(texts[IMAGE], "./") > 0; }

static int refuse(const char *option, const char *why)
{
	slurm_error("pyxis: --%s%s", option, why);
	return -1;
}

static int check_unshare(const char *value)
{
	char copy[64] = "", *rest = copy, *entry;

	if (strlen(value) >= sizeof copy)
		return refuse(text_names[UNSHARE], ": too long");
	strcpy(copy, value);
	while ((entry = strsep(&rest, ",")) != NULL) {
		if (strcmp(entry, "net") != 0 && strcmp(entry, "ipc") != 0 && strcmp(entry, "uts") != 0) {
			slurm_error("pyxis: --container-unshare: unknown namespace '%s'", entry);
			return -1;
		}
	}
	return 0;
}

static int take_text(int which, const char *value, int remote)
{
	(void)remote;
	if (value == NULL || *value == '\0')
		return refuse(text_names[which], ": argument required");
	if (which == SAVE && value[strlen(value) - 1] == '/')
		return refuse(text_names[which], ": target is a directory");
	if (which == UNSHARE && check_unshare(value) < 0)
		return -1;
	/* Slurm gives the same value twice where sbatch's options come to a step. */
	if (texts[which] != NULL)
		return strcmp(texts[which], value) == 0 ? 0 : refuse(text_names[which], " specified multiple times");
	texts[which] = strdup(value);
	return texts[which] == NULL ? refuse(text_names[which], ": could not allocate memory") : 0;
}

static int take_flag(int which_and_value, const char *value, int remote)
{
	int which = which_and_value / 2, wanted = which_and_value % 2;

	(void)value, (void)remote;
	if (flags[which] != -1 && flags[which] != wanted)
		return refuse(flag_names[which], " and its opposite were both specified");
	flags[which] = wanted;
	return 0;
}

int options_register(spank_t spank)
{
	for (struct spank_option *each = table; each->name != NULL; each++) {
		spank_err_t status = spank_option_register(spank, each);
		if (status != ESPANK_SUCCESS) {
			slurm_error("pyxis: couldn't register option %s: %s", each->name, spank_strerror(status));
			return -1;
		}
	}
	return 0;
}

int options_from_environment(spank_t spank)
{
	char remote[4096];

	for (int which = 0; which < TEXT_OPTIONS; which++) {
		const char *value = NULL;
		if (spank_context() != S_CTX_REMOTE)
			value = getenv(text_variables[which]);
		else if (spank_getenv(spank, text_variables[which], remote, sizeof remote) == ESPANK_SUCCESS)
			value = remote;
		if (value != NULL && texts[which] == NULL && take_text(which, value, 0) < 0)
			return -1;
	}
	return 0;
}

static void ignore(const char *prefix, const char *name)
{
	slurm_error("pyxis: ignoring --%s%s because neither --container-image nor --container-name is set", prefix, name);
}

bool options_want_container(void)
{
	if (texts[IMAGE] != NULL || texts[NAME] != NULL)
		return true;
	for (int which = 0; which < TEXT_OPTIONS; which++)
		if (texts[which] != NULL)
			ignore("", text_names[which]);
	for (int which = 0; which < FLAG_OPTIONS; which++)
		if (flags[which] != -1)
			ignore("[no-]", flag_names[which]);
	return false;
}

void json_string(FILE *out, const char *text)
{
	fputc('"', out);
	for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
		if (*at == '"' || *at == '\\')
			fprintf(out, "\\%c", *at);
		else if (*at < 0x20)
			fprintf(out, "\\u%04x", *at);
		else
			fputc(*at, out);
	}
	fputc('"', out);
}

void options_write_json(FILE *out)
{
	const char *separator = "";

	fputc('{', out);
	for (int which = 0; which < TEXT_OPTIONS; which++) {
		if (texts[which] == NULL)
			continue;
		fprintf(out, "%s\"%s\": ", separator, text_names[which]);
		json_string(out, texts[which]);
		separator = ", ";
	}
	for (int which = 0; which < FLAG_OPTIONS; which++) {
		if (flags[which] == -1)
			continue;
		fprintf(out, "%s\"%s\": %s", separator, flag_names[which], flags[which] ? "true" : "false");
		separator = ", ";
	}
	fputc('}', out);
}
