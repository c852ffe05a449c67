#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "container.h"
#include "options.h"

/* Files in control/ that make the stand-in fail as the real parts do. */
#define PULL_FAILS "pull-fails" /* holds the registry's status code; empty is 429 */
#define SAVE_FAILS "save-fails"

static bool control(const struct container *container, const char *flag, char *text, size_t size)
{
	char path[PATH_MAX];
	ssize_t length;
	int file;

	snprintf(path, sizeof path, "%.4000s/control/%s", container->root, flag);
	file = open(path, O_RDONLY | O_CLOEXEC);
	if (file < 0)
		return false;
	length = read(file, text, size - 1);
	text[length > 0 ? length : 0] = '\0';
	close(file);
	return true;
}

static int become_user(const struct container *container)
{
	struct passwd *user;

	if (geteuid() != 0)
		return 0;
	user = getpwuid(container->uid);
	return user == NULL || initgroups(user->pw_name, container->gid) < 0 ||
	       setresgid(container->gid, container->gid, container->gid) < 0 ||
	       setresuid(container->uid, container->uid, container->uid) < 0 ? -1 : 0;
}

/* What enroot does, told on stderr; its exit status. */
typedef int work(const struct container *container, const char *argument);

/* Do `work` in a child as the user. What it prints is enroot's log, shown when it fails after `failure`. */
static int as_user(const struct container *container, work *work, const char *argument, const char *failure)
{
	char log[8192] = "", *rest = log, *line;
	size_t used = 0;
	ssize_t got;
	int ends[2], status = -1;
	pid_t child;

	if (pipe2(ends, O_CLOEXEC) < 0 || (child = fork()) < 0) {
		slurm_error("pyxis: couldn't start a child: %s", strerror(errno));
		return -1;
	}
	if (child == 0) {
		dup2(ends[1], STDERR_FILENO);
		_exit(become_user(container) < 0 ? 126 : work(container, argument));
	}
	close(ends[1]);
	while (used < sizeof log - 1 && (got = read(ends[0], log + used, sizeof log - 1 - used)) > 0)
		used += got;
	close(ends[0]);
	log[used] = '\0';
	if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	slurm_error("pyxis: child %d failed with error code: %d", (int)child, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	if (failure != NULL)
		slurm_error("pyxis: %s: %s", failure, option_text(IMAGE));
	slurm_error("pyxis: printing enroot log file:");
	while ((line = strsep(&rest, "\n")) != NULL)
		if (*line != '\0')
			slurm_error("pyxis:     %s", line);
	return -1;
}

/* Run tar with `output` as its standard output; its exit status. */
static int tar(char *const arguments[], int output)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		int null = open("/dev/null", O_RDWR);
		dup2(output >= 0 ? output : null, STDOUT_FILENO);
		dup2(null, STDERR_FILENO);
		execv("/bin/tar", arguments);
		_exit(127);
	}
	return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The registry's answer to a pull that it refuses, in enroot's words. */
static int refuse_pull(const char *reference, const char *code)
{
	const char *registry = "registry-1.docker.io", *prefix, *tag = "latest";
	char copy[1024], *name = copy, *mark;

	snprintf(copy, sizeof copy, "%s", reference);
	if ((mark = strchr(name, '@')) != NULL)
		name = mark + 1;
	if ((mark = strchr(name, '#')) != NULL) {
		*mark = '\0';
		registry = name;
		name = mark + 1;
	}
	mark = strrchr(name, ':');
	if (mark != NULL && strchr(mark, '/') == NULL) {
		*mark = '\0';
		tag = mark + 1;
	}
	prefix = strchr(name, '/') == NULL ? "library/" : "";
	fprintf(stderr, "[INFO] Querying registry for permission grant\n");
	fprintf(stderr, "[INFO] Authenticating with user: <anonymous>\n");
	fprintf(stderr, "[INFO] Authentication succeeded\n");
	fprintf(stderr, "[INFO] Fetching image manifest list\n");
	fprintf(stderr, "[ERROR] URL https://%s/v2/%s%s/manifests/%s returned error code: %d\n", registry, prefix, name, tag,
		atoi(code) > 0 ? atoi(code) : 429);
	return 1;
}

static int write_file(const struct container *container, const char *name, const char *before, const char *text)
{
	char path[PATH_MAX];
	FILE *file;

	snprintf(path, sizeof path, "%.4000s/%s", container->directory, name);
	file = fopen(path, "w");
	if (file == NULL || fprintf(file, "%s%s", before, text) < 0 || fclose(file) != 0) {
		fprintf(stderr, "[ERROR] %s: %s\n", path, strerror(errno));
		return 1;
	}
	return 0;
}

static int pull(const struct container *container, const char *reference)
{
	char code[16];

	if (container->existed) {
		fprintf(stderr, "[ERROR] File already exists: %s\n", container->directory);
		return 1;
	}
	if (control(container, PULL_FAILS, code, sizeof code))
		return refuse_pull(reference, code);
	return write_file(container, IMAGE_MARK, "docker://", reference) || write_file(container, IMAGE_END, "", "");
}

static int unpack(const struct container *container, const char *path)
{
	char *const arguments[] = { "tar", "-C", (char *)container->directory, "-xf", (char *)path, NULL };
	char head[sizeof IMAGE_MARK] = "", end[PATH_MAX];
	int file = open(path, O_RDONLY | O_CLOEXEC);

	if (container->existed) {
		fprintf(stderr, "[ERROR] File already exists: %s\n", container->directory);
		return 1;
	}
	if (file < 0) {
		fprintf(stderr, "[ERROR] %s: %s\n", errno == ENOENT ? "No such file or directory" : strerror(errno), path);
		return 1;
	}
	if (read(file, head, sizeof head) != sizeof head || memcmp(head, IMAGE_MARK, sizeof head) != 0) {
		fprintf(stderr, "[ERROR] Invalid image format: %s\n", path);
		return 1;
	}
	snprintf(end, sizeof end, "%.4000s/" IMAGE_END, container->directory);
	if (tar(arguments, -1) != 0 || access(end, F_OK) < 0) {
		fprintf(stderr, "FATAL ERROR:Can't find a SQUASHFS superblock on %s\n", path);
		return 1;
	}
	return 0;
}

static int pack(const struct container *container, const char *path)
{
	char *const arguments[] = {
		"tar", "-C", (char *)container->directory, "-cf", "-", IMAGE_MARK, "system", "opt", IMAGE_END, NULL,
	};
	char text[16];
	struct stat written;
	int file;

	umask(022);
	/* As `enroot export -f`: the old file goes first, the new one is written at its place. */
	if (unlink(path) < 0 && errno != ENOENT && errno != ENOTDIR) {
		fprintf(stderr, "[ERROR] Could not remove %s: %s\n", path, strerror(errno));
		return 1;
	}
	file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
	if (file < 0) {
		fprintf(stderr, "[ERROR] Could not create %s: %s\n", path, strerror(errno));
		return 1;
	}
	if (tar(arguments, file) != 0) {
		fprintf(stderr, "FATAL ERROR:Failed to write to output filesystem\n");
		return 1;
	}
	if (control(container, SAVE_FAILS, text, sizeof text)) {
		if (fstat(file, &written) == 0 && ftruncate(file, written.st_size / 2) == 0)
			fprintf(stderr, "Write failed because No space left on device\n");
		fprintf(stderr, "FATAL ERROR:Failed to write to output filesystem\n");
		return 1;
	}
	return close(file) == 0 ? 0 : 1;
}

int image_import(const struct container *container)
{
	const char *image = option_text(IMAGE), *scheme = "docker://", *reference = image;

	if (!container->temporary && container->existed) {
		slurm_info("pyxis: reusing existing container filesystem");
		return 0;
	}
	if (image == NULL) {
		slurm_error("pyxis: error: a container with name \"%s\" does not exist, and --container-image is not set",
			    container->name);
		return -1;
	}
	if (option_image_is_file())
		return as_user(container, unpack, image, "failed to create container filesystem for image");
	if (container->tasks == 1)
		slurm_spank_log("pyxis: importing docker image: %s", image);
	if (strncmp(image, scheme, strlen(scheme)) == 0)
		reference += strlen(scheme);
	if (as_user(container, pull, reference, "failed to import docker image") < 0)
		return -1;
	slurm_spank_log("pyxis: imported docker image: %s", image);
	return 0;
}

int image_export(const struct container *container, const char *path)
{
	return as_user(container, pack, path, NULL);
}
