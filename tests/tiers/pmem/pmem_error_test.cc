// A cell that went bad is EIO of a read, of these bytes alone; a write that
// cannot be made to last is an error and not the end of the process. A file
// system that fails as it is told to stands for both.
#include <cerrno>

#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "tests/support/fuse/fuse_mount.h"
#include "tests/tiers/pmem/pmem_support.h"
#include "tiers/disk/given_mark.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBytes = 64 << 10;

class PmemErrorTest : public PmemTest {
 protected:
  void SetUp() override {
    PmemTest::SetUp();
    if (IsSkipped()) return;
    if (!mount_.ok()) GTEST_SKIP() << mount_.reason();
    // By this name it can be mapped.
    file_ = mount_.path() + "/given.cached";
    const int fd = open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    close(fd);
    auto medium = OpenUnsafe(file_, kBytes);
    ASSERT_TRUE(medium.ok()) << medium.status();
    medium_ = *std::move(medium);
  }

  void Fail(int error, FuseCall call = FuseCall::kRead) {
    mount_.Arm({.call = call, .kind = FuseFault::Kind::kError, .value = error});
  }

  FuseMount mount_;
  std::string file_;
  std::unique_ptr<PmemMedium> medium_;
};

TEST_F(PmemErrorTest, APieceIsLostWhereTheReadFails) {
  const std::vector<std::byte> written = Filled(8192, 6);
  ASSERT_TRUE(medium_->Write(0, written).ok());  // so it is in the cache
  Fail(EIO);
  std::vector<std::byte> read(16384);
  const absl::Status lost = medium_->Read(100, absl::MakeSpan(read));
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(lost.ToString(), AllOf(HasSubstr(file_), HasSubstr("EIO"),
                                     HasSubstr("offset 12288")));
  EXPECT_EQ(IoFaultOf(lost).error, EIO);
  EXPECT_EQ(IoFaultOf(lost).path, file_);
  EXPECT_EQ(IoFaultOf(lost).offset, kGivenMarkBytes + 8192);
  // Others are whole, and so is this one when the medium is.
  read.resize(8192);
  EXPECT_TRUE(medium_->Read(0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, written);
  mount_.Clear();
  EXPECT_TRUE(medium_->Read(8192, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, std::vector<std::byte>(8192));
}

TEST_F(PmemErrorTest, AnotherErrorIsNoLoss) {
  Fail(ENOMEM);
  std::vector<std::byte> read(4096);
  const absl::Status failed = medium_->Read(4096, absl::MakeSpan(read));
  // The page cache makes EIO of some errors.
  if (absl::IsDataLoss(failed)) GTEST_SKIP() << failed;
  EXPECT_TRUE(absl::IsResourceExhausted(failed)) << failed;
  EXPECT_EQ(IoFaultOf(failed).error, ENOMEM);
  EXPECT_EQ(IoFaultOf(failed).offset, 8192);
}

TEST_F(PmemErrorTest, AWriteThatDoesNotPersistSaysWhere) {
  for (const int error : {EIO, ENOSPC}) {
    Fail(error, FuseCall::kWrite);
    const absl::Status failed = medium_->Write(8000, Filled(5000, 1));
    mount_.Clear();
    EXPECT_FALSE(failed.ok());
    EXPECT_FALSE(absl::IsDataLoss(failed)) << "the source is whole";
    EXPECT_THAT(failed.ToString(),
                AllOf(HasSubstr(file_), HasSubstr("msync"),
                      HasSubstr("5000 bytes"), HasSubstr("(")));
    EXPECT_NE(IoFaultOf(failed).error, 0);
    EXPECT_EQ(IoFaultOf(failed).path, file_);
    EXPECT_EQ(IoFaultOf(failed).offset, kGivenMarkBytes + 8000);
  }
  const std::vector<std::byte> again = Filled(5000, 2);
  const absl::Status written = medium_->Write(8000, again);
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(RawBytes(file_, kGivenMarkBytes + 8000, 5000), again);
}

}  // namespace
}  // namespace terrace
