#include "base/io_fault.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <string>

namespace terrace {
namespace {

// Whatever a message could be cut at.
constexpr char kPath[] = "/mnt/a, b: 'c' \"d\" 7 (e)\n/state";

TEST(IoFaultTest, AStatusCarriesAnErrnoAPathAndAnOffset) {
  const absl::Status status =
      WithIoFault(absl::UnavailableError("no"), {ENOSPC, kPath, 4096});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "no");
  const IoFault fault = IoFaultOf(status);
  EXPECT_EQ(fault.error, ENOSPC);
  EXPECT_EQ(fault.path, kPath);
  EXPECT_EQ(fault.offset, 4096);
}

TEST(IoFaultTest, AStatusWithoutOneHasAnEmptyFault) {
  for (const absl::Status& status :
       {absl::OkStatus(), absl::InternalError("ours"),
        WithIoFault(absl::OkStatus(), {EIO, kPath, 0})}) {
    const IoFault fault = IoFaultOf(status);
    EXPECT_EQ(fault.error, 0);
    EXPECT_EQ(fault.path, "");
    EXPECT_EQ(fault.offset, IoFault::kNoOffset);
  }
  EXPECT_TRUE(WithIoFault(absl::OkStatus(), {EIO, kPath, 0}).ok());
}

TEST(IoFaultTest, AnotherMessageKeepsIt) {
  const absl::Status status =
      WithIoFault(absl::UnavailableError("no"), {EIO, kPath, 8192});
  const absl::Status reworded =
      Reworded(status, absl::StatusCode::kDataLoss, "tensor 'x': no");
  EXPECT_TRUE(absl::IsDataLoss(reworded));
  EXPECT_EQ(reworded.message(), "tensor 'x': no");
  EXPECT_EQ(IoFaultOf(reworded).error, EIO);
  EXPECT_EQ(IoFaultOf(reworded).path, kPath);
  EXPECT_EQ(IoFaultOf(reworded).offset, 8192);
  EXPECT_EQ(Reworded(status, "again").code(), status.code());
  EXPECT_EQ(IoFaultOf(Reworded(status, "again")).path, kPath);
}

TEST(IoFaultTest, WhatIsKnownLaterFillsInOnlyWhatLacks) {
  absl::Status status =
      WithIoFault(absl::PermissionDeniedError("no"), {.error = EACCES});
  status = WithIoFault(status, {.path = kPath});
  status = WithIoFault(status, {EIO, "/elsewhere", 0});
  EXPECT_EQ(IoFaultOf(status).offset, IoFault::kNoOffset);
  status = WithIoFault(status, {.offset = 512});
  EXPECT_EQ(IoFaultOf(status).error, EACCES);
  EXPECT_EQ(IoFaultOf(status).path, kPath);
  EXPECT_EQ(IoFaultOf(status).offset, 512);
  status = WithIoFault(status, {EIO, kPath, 0});
  EXPECT_EQ(IoFaultOf(status).error, EACCES);
  EXPECT_EQ(IoFaultOf(status).offset, 512);
}

}  // namespace
}  // namespace terrace
