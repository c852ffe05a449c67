#define _GNU_SOURCE
#include "container.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "options.h"

static char enter_failure[2 * PATH_MAX];

static int make_directory(const char *path, mode_t mode, uid_t uid, gid_t gid)
{
	if (mkdir(path, mode) < 0)
		return errno == EEXIST ? 0 : -1;
	return chown(path, uid, gid) < 0 || chmod(path, mode) < 0 ? -1 : 0;
}

/* Split `NAME[:FLAG]` of --container-name; an unnamed container is called after its step. */
static int choose_name(struct container *container, unsigned job, unsigned step)
{
	const char *given = option_text(NAME);
	size_t length = given == NULL ? 0 : strcspn(given, ":");

	container->temporary = given == NULL;
	if (given == NULL) {
		snprintf(container->name, sizeof container->name, "pyxis_%u.%u", job, step);
		return 0;
	}
	if (length == 0 || length > 100 || memchr(given, '/', length) != NULL) {
		slurm_error("pyxis: --container-name: empty name");
		return -1;
	}
	snprintf(container->name, sizeof container->name, "pyxis_%.*s", (int)length, given);
	return 0;
}

static int make_directories(struct container *container)
{
	const char *node = getenv("SPEEDRUN_TESTBED_NODE");
	const char *const parts[] = { "", "/system", "/opt" };
	char path[PATH_MAX];

	/* Each emulated node has containers of its own, as each real one has. */
	snprintf(path, sizeof path, "%.3000s/containers/%.200s", container->root, node != NULL ? node : "node");
	if (make_directory(path, 0711, 0, 0) < 0)
		return -1;
	snprintf(path + strlen(path), 32, "/user-%u", container->uid);
	if (make_directory(path, 0700, container->uid, container->gid) < 0)
		return -1;
	snprintf(container->directory, sizeof container->directory, "%.3500s/%s", path, container->name);
	container->existed = access(container->directory, F_OK) == 0;
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		snprintf(path, sizeof path, "%.4000s%s", container->directory, parts[i]);
		if (make_directory(path, 0755, container->uid, container->gid) < 0)
			return -1;
	}
	return 0;
}

int container_prepare(struct container *container, spank_t spank, const char *root, unsigned job, unsigned step)
{
	uint32_t tasks = 0;

	if (spank_get_item(spank, S_JOB_UID, &container->uid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_GID, &container->gid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS) {
		slurm_error("pyxis: couldn't get job information");
		return -1;
	}
	container->tasks = tasks > 0 ? (int)tasks : 1;
	spank_getenv(spank, "PWD", container->job_directory, sizeof container->job_directory);
	snprintf(container->root, sizeof container->root, "%s", root);
	if (choose_name(container, job, step) < 0)
		return -1;
	if (make_directories(container) < 0) {
		slurm_error("pyxis: couldn't mkdir %s: %s", container->directory, strerror(errno));
		return -1;
	}
	container->shared = mmap(NULL, sizeof *container->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (container->shared == MAP_FAILED) {
		slurm_error("pyxis: could not allocate memory");
		return -1;
	}
	return 0;
}

/* Mount one `SRC:DST[:FLAGS]`. The node's file system is the container's, so DST must exist there or lie in /opt. */
static int mount_entry(char *entry)
{
	char *source = strsep(&entry, ":"), *target = strsep(&entry, ":"), *flags = entry;
	bool read_only = flags != NULL && strstr(flags, "ro") != NULL;

	if (target == NULL)
		target = source;
	if (access(source, F_OK) < 0) {
		snprintf(enter_failure, sizeof enter_failure, "--container-mounts: source path does not exist: %s", source);
		return -1;
	}
	if (strncmp(target, "/opt/", 5) == 0)
		mkdir(target, 0755);
	if (mount(source, target, NULL, MS_BIND | MS_REC, NULL) < 0 ||
	    (read_only && mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0)) {
		snprintf(enter_failure, sizeof enter_failure, "couldn't mount %s on %s: %s (this stand-in mounts on what exists)",
			 source, target, strerror(errno));
		return -1;
	}
	return 0;
}

static int mount_entries(void)
{
	char *copy, *rest, *entry;
	int status = 0;

	if (option_text(MOUNTS) == NULL)
		return 0;
	rest = copy = strdup(option_text(MOUNTS));
	while (status == 0 && (entry = strsep(&rest, ",")) != NULL)
		status = mount_entry(entry);
	free(copy);
	return status;
}

void container_enter(const struct container *container)
{
	char opt[PATH_MAX];

	snprintf(opt, sizeof opt, "%.4000s/opt", container->directory);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount(opt, "/opt", NULL, MS_BIND, NULL) < 0 ||
	    (option_flag(WRITABLE) == 0 && mount(NULL, "/opt", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0)) {
		snprintf(enter_failure, sizeof enter_failure, "couldn't join mount namespace: %s", strerror(errno));
		return;
	}
	mount_entries();
}

/* The first task to come here does the work; the others wait for it and learn how it went. */
int container_setup(const struct container *container)
{
	char path[PATH_MAX];
	int lock, setup;

	if (enter_failure[0] != '\0') {
		slurm_error("pyxis: %s", enter_failure);
		return -1;
	}
	snprintf(path, sizeof path, "%.4000s/lock", container->directory);
	lock = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	if (lock < 0 || flock(lock, LOCK_EX) < 0) {
		slurm_error("pyxis: failed to acquire container setup lock: %s", strerror(errno));
		return -1;
	}
	if (container->shared->setup == 0)
		container->shared->setup = image_import(container) == 0 ? 1 : -1;
	else if (container->shared->setup < 0)
		slurm_error("pyxis: container was not started successfully by another task");
	setup = container->shared->setup;
	close(lock);
	return setup > 0 ? 0 : -1;
}

void container_task_started(const struct container *container)
{
	__atomic_add_fetch(&container->shared->started, 1, __ATOMIC_SEQ_CST);
}

int container_task_ended(const struct container *container)
{
	const char *save = option_text(SAVE);
	char path[PATH_MAX];

	if (++container->shared->finished != container->tasks || save == NULL)
		return 0;
	/* As Pyxis: how the tasks ended is not asked, only whether all of them had started. */
	if (container->shared->started != container->tasks)
		return 0;
	if (save[0] == '/')
		snprintf(path, sizeof path, "%s", save);
	else
		snprintf(path, sizeof path, "%.3000s/%.1000s", container->job_directory, save);
	if (image_export(container, path) < 0) {
		slurm_error("pyxis: failed to export container %s to %s", container->name, save);
		return -1;
	}
	slurm_spank_log("pyxis: exported container %s to %s", container->name, save);
	return 0;
}

void container_remove(const struct container *container)
{
	pid_t child;

	if (!container->temporary || container->directory[0] == '\0')
		return;
	child = fork();
	if (child == 0) {
		execl("/bin/rm", "rm", "-rf", container->directory, (char *)NULL);
		_exit(127);
	}
	if (child > 0)
		waitpid(child, NULL, 0);
}
