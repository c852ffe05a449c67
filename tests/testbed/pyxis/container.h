/* "The container" of a step: a private /opt, and a note of what was installed outside of /opt.
 *
 * Everything else is the node's own file system. A container's directory holds
 *   speedrun-testbed-image  the base image's reference; its name marks a file as an image of this stand-in
 *   system/                 what apt-get (a stub) notes
 *   opt/                    what the container shows as /opt
 *   complete                empty
 * and an image file is a tar of these four in this order: without the last one it was cut off while it was written.
 */
#ifndef CONTAINER_H
#define CONTAINER_H

#include <limits.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <sys/types.h>

#define IMAGE_MARK "speedrun-testbed-image"
#define IMAGE_END "complete"

/* What the tasks of a step on a node know together. */
struct shared {
	int setup; /* 0: not yet, 1: done, -1: failed */
	int started;
	int finished;
};

struct container {
	char root[PATH_MAX]; /* of the stand-in: control/, containers/, programs/ */
	char directory[PATH_MAX];
	char name[NAME_MAX];
	char job_directory[PATH_MAX]; /* relative paths of --container-save start here */
	uid_t uid;
	gid_t gid;
	int tasks;
	bool temporary; /* removed at the end of the step: it has no --container-name */
	bool existed;
	struct shared *shared;
};

/* In slurmstepd, as root, before the tasks: make the directory. 0, or -1 after saying why not. */
int container_prepare(struct container *container, spank_t spank, const char *root, unsigned job, unsigned step);
/* In a task, as root: mount. What goes wrong is kept for container_setup, whose words reach the user. */
void container_enter(const struct container *container);
/* In a task, as the user: fill the container from its image, once a step. 0, or -1 after saying why not. */
int container_setup(const struct container *container);
/* In a task, once nothing can keep it from running. */
void container_task_started(const struct container *container);
/* In slurmstepd, as root, as each task ends: the last one saves the image where asked. 0, or -1. */
int container_task_ended(const struct container *container);
/* In slurmstepd, as root, after the step. */
void container_remove(const struct container *container);

/* image.c: the work of enroot, done as the user in a child; 0, or -1 after saying what Pyxis and enroot say. */
int image_import(const struct container *container);
int image_export(const struct container *container, const char *path);

#endif
