// SPDX-License-Identifier: BSD-3-Clause
#include "backends/mpi/module/lost_ranks.h"

#include <numeric>

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

namespace lockstep::mpi {

#ifdef OMPI_HAVE_MPI_EXT_FTMPI

namespace {

int class_of(int result) {
  int kind = MPI_SUCCESS;
  MPI_Error_class(result, &kind);
  return kind;
}

// [i]: the rank in `group` of rank i of `part`.
std::vector<int> ranks_in(MPI_Comm group, MPI_Group part) {
  int size = 0;
  MPI_Group_size(part, &size);
  std::vector<int> own(static_cast<std::size_t>(size));
  std::vector<int> ranks(own.size());
  std::iota(own.begin(), own.end(), 0);
  MPI_Group all = MPI_GROUP_NULL;
  check(MPI_Comm_group(group, &all), "MPI_Comm_group");
  MPI_Group_translate_ranks(part, size, own.data(), all, ranks.data());
  MPI_Group_free(&all);
  return ranks;
}

}  // namespace

bool job_survives_lost_ranks() {
  int* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, static_cast<void*>(&value), &found);
  return found != 0 && *value != 0;
}

bool is_loss(int result) {
  const int kind = class_of(result);
  return kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING;
}

bool is_revocation(int result) { return class_of(result) == MPIX_ERR_REVOKED; }

void revoke(MPI_Comm group) { check(MPIX_Comm_revoke(group), "MPIX_Comm_revoke"); }

bool is_revoked(MPI_Comm group) {
  int revoked = 0;
  check(MPIX_Comm_is_revoked(group, &revoked), "MPIX_Comm_is_revoked");
  return revoked != 0;
}

std::vector<int> lost_ranks_of(MPI_Comm group) {
  int arrived = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &arrived, MPI_STATUS_IGNORE);
  MPI_Group lost = MPI_GROUP_NULL;
  check(MPIX_Comm_get_failed(group, &lost), "MPIX_Comm_get_failed");
  auto ranks = ranks_in(group, lost);
  MPI_Group_free(&lost);
  return ranks;
}

MPI_Comm create_among_survivors(MPI_Group members, int tag) {
  MPI_Comm group = MPI_COMM_NULL;
  const auto name = "lockstep " + std::to_string(tag);
  check(MPI_Comm_create_from_group(members, name.c_str(), MPI_INFO_NULL, MPI_ERRORS_RETURN, &group),
        "MPI_Comm_create_from_group");
  return group;
}

#else

bool job_survives_lost_ranks() { return false; }
bool is_loss(int) { return false; }
bool is_revocation(int) { return false; }
void revoke(MPI_Comm) {}
bool is_revoked(MPI_Comm) { return false; }
std::vector<int> lost_ranks_of(MPI_Comm) { return {}; }
MPI_Comm create_among_survivors(MPI_Group, int) { throw Error("this MPI does not survive lost ranks"); }

#endif

}  // namespace lockstep::mpi
