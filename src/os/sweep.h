// Finding what a job left behind, by a variable in the environment that all its processes inherit. Never by name, and
// never by parent alone: a daemon has no parent to know it by.
//
// A job that runs inside a rank of another one carries both marks: "outer.inner" belongs to "outer" too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "os/process_table.h"

namespace yoke {

inline constexpr const char* job_variable = "YOKE_JOB_ID";

// A mark that no other job on this machine has, inside the job `outer` unless that is empty.
std::string new_job_id(const std::string& outer);
bool belongs_to_job(std::string_view mark, std::string_view job_id);

// The live processes of the job, this one left out.
std::vector<pid_t> processes_of_job(const std::string& job_id, const std::string& root = "/proc");

// Kills (SIGKILL) them again and again until a look finds none, or the limit has passed. Returns who is still there.
std::vector<ProcessInfo> kill_job(const std::string& job_id, double limit_seconds);

}  // namespace yoke
