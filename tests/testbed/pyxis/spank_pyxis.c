/* A stand-in for NVIDIA's Pyxis: the hooks that Slurm calls. In plugstack.conf: required SO DIRECTORY
 *
 * DIRECTORY holds control/ (flag files, see image.c), containers/, programs/ (first in a container's PATH) and
 * steps.jsonl, to which each step with a container and each save adds a line.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "container.h"
#include "options.h"

SPANK_PLUGIN(pyxis, 1)

#define BATCH_STEP 0xfffffffbu
#define INTERACTIVE_STEP 0xfffffffau
#define FIRST_SPECIAL_STEP 0xfffffff0u

static const char *root = "";
static struct container container;
static uint32_t job, step;
static bool active;

static int log_event(const char *event)
{
	char path[PATH_MAX], *line = NULL;
	const char *node = getenv("SPEEDRUN_TESTBED_NODE");
	size_t length = 0;
	int file, written;
	FILE *out = open_memstream(&line, &length);

	fprintf(out, "{\"event\": \"%s\", \"job\": %u, \"step\": ", event, job);
	if (step == BATCH_STEP)
		fputs("\"batch\"", out);
	else
		fprintf(out, "%u", step);
	fprintf(out, ", \"uid\": %u, \"node\": ", container.uid);
	json_string(out, node != NULL ? node : "");
	fputs(", \"options\": ", out);
	options_write_json(out);
	fputs("}\n", out);
	fclose(out);
	snprintf(path, sizeof path, "%.4000s/steps.jsonl", root);
	file = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
	written = file >= 0 && write(file, line, length) == (ssize_t)length;
	if (file >= 0)
		close(file);
	free(line);
	return written ? 0 : -1;
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
	if (spank_context() == S_CTX_SLURMD || spank_context() == S_CTX_JOB_SCRIPT)
		return 0;
	if (count != 1 || arguments[0][0] != '/') {
		slurm_error("pyxis: plugstack.conf must name the stand-in's directory");
		return -1;
	}
	root = arguments[0];
	return options_register(spank);
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
	(void)count, (void)arguments;
	if (spank_context() != S_CTX_LOCAL && spank_context() != S_CTX_ALLOCATOR && spank_context() != S_CTX_REMOTE)
		return 0;
	if (options_from_environment(spank) < 0)
		return -1;
	if (!options_want_container() || spank_context() != S_CTX_REMOTE)
		return 0;
	spank_get_item(spank, S_JOB_ID, &job);
	spank_get_item(spank, S_JOB_STEPID, &step);
	if (step >= FIRST_SPECIAL_STEP && step != BATCH_STEP && step != INTERACTIVE_STEP)
		return 0;
	if (container_prepare(&container, spank, root, job, step) < 0)
		return -1;
	active = true;
	if (log_event("step") < 0)
		slurm_error("pyxis: couldn't write %s/steps.jsonl: %s", root, strerror(errno));
	return 0;
}

/* The mounts must stand before Slurm looks for the step's program, which may lie in the container only. */
int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments)
{
	(void)spank, (void)count, (void)arguments;
	if (active)
		container_enter(&container);
	return 0;
}

/* The environment of an image wins over the job's, but for what --container-env names. */
static void set_environment(spank_t spank)
{
	static const char *const locale[] = { "LANG", "LANGUAGE", "LC_ALL" };
	char path[8192], old[4096] = "";

	for (size_t i = 0; i < sizeof locale / sizeof *locale; i++)
		if (!option_env_has(locale[i]))
			spank_unsetenv(spank, locale[i]);
	if (option_env_has("PATH"))
		spank_getenv(spank, "PATH", old, sizeof old);
	snprintf(path, sizeof path, "%s/programs/bin:%s", root, old[0] != '\0' ? old :
		 "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
	spank_setenv(spank, "PATH", path, 1);
	if (!option_env_has("NVIDIA_VISIBLE_DEVICES"))
		spank_setenv(spank, "NVIDIA_VISIBLE_DEVICES", "all", 1);
	snprintf(path, sizeof path, "%.4000s/programs", root);
	spank_setenv(spank, "TESTBED_PROGRAMS", path, 1);
	snprintf(path, sizeof path, "%.4000s/system", container.directory);
	spank_setenv(spank, "TESTBED_SYSTEM", path, 1);
	/* The node's enroot makes its users root in a container, as the guide's cluster does. */
	spank_setenv(spank, "TESTBED_ROOT", option_flag(REMAP_ROOT) == 0 ? "0" : "1", 1);
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
	const char *directory = option_text(WORKDIR) != NULL ? option_text(WORKDIR) : "/";

	(void)count, (void)arguments;
	if (!active)
		return 0;
	if (container_setup(&container) < 0)
		return -1;
	set_environment(spank);
	if (chdir(directory) < 0) {
		slurm_error("pyxis: couldn't chdir to %s: %s", directory, strerror(errno));
		return -1;
	}
	container_task_started(&container);
	return 0;
}

int slurm_spank_task_exit(spank_t spank, int count, char **arguments)
{
	int status;

	(void)spank, (void)count, (void)arguments;
	if (!active)
		return 0;
	status = container_task_ended(&container);
	if (container.shared->finished == container.tasks && option_text(SAVE) != NULL)
		log_event(status == 0 ? "saved" : "save failed");
	return status;
}

int slurm_spank_exit(spank_t spank, int count, char **arguments)
{
	(void)spank, (void)count, (void)arguments;
	if (spank_context() == S_CTX_REMOTE && active)
		container_remove(&container);
	return 0;
}
