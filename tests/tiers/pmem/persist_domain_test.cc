#include "tiers/pmem/persist_domain.h"

#include <algorithm>
#include <cstring>

#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/pmem/pmem_support.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBytes = 256 << 10;

class PersistDomainTest : public PmemTest {
 protected:
  void SetUp() override {
    PmemTest::SetUp();
    if (IsSkipped()) return;
    name_ = directory_.Write("file", std::string(kBytes, '\0'));
    fd_ = open(name_.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd_, 0);
  }
  ~PersistDomainTest() override {
    if (fd_ >= 0) close(fd_);
  }

  absl::StatusOr<std::unique_ptr<PersistDomain>> Map(int64_t bytes) const {
    return PersistDomain::Map(fd_, name_, bytes, PersistDomain::Media::kUnsafe);
  }

  TemporaryDirectory directory_;
  std::string name_;
  int fd_ = -1;
};

TEST_F(PersistDomainTest, WhatIsCopiedAndStoredIsInTheFile) {
  const auto domain = Map(kBytes);
  ASSERT_TRUE(domain.ok()) << domain.status();
  ASSERT_EQ((*domain)->bytes().size(), static_cast<size_t>(kBytes));
  std::vector<std::byte> expected(kBytes);
  const std::vector<std::byte> copied = Filled(70'001, 3);
  ASSERT_TRUE((*domain)->Copy(4'097, copied).ok());
  std::copy(copied.begin(), copied.end(), expected.begin() + 4'097);
  const std::vector<std::byte> stored = Filled(333, 8);
  for (const int64_t offset : {int64_t{100'000}, kBytes - 333}) {
    std::memcpy((*domain)->bytes().data() + offset, stored.data(),
                stored.size());
    std::copy(stored.begin(), stored.end(), expected.begin() + offset);
  }
  EXPECT_TRUE((*domain)->Persist(100'000, 333).ok());
  EXPECT_TRUE((*domain)->Persist(kBytes - 333, 333).ok());
  EXPECT_TRUE((*domain)->Persist(kBytes, 0).ok());
  EXPECT_EQ(RawBytes(name_, 0, kBytes), expected);
}

TEST_F(PersistDomainTest, ItLivesOnWhenTheDescriptorIsClosed) {
  const auto domain = Map(kBytes);
  ASSERT_TRUE(domain.ok()) << domain.status();
  close(fd_);
  fd_ = -1;
  ASSERT_TRUE((*domain)->Copy(0, Filled(kBytes, 2)).ok());
  EXPECT_EQ(RawBytes(name_, 0, kBytes), Filled(kBytes, 2));
}

TEST_F(PersistDomainTest, WhatIsNotInTheFileIsNotMapped) {
  const absl::Status refused = Map(kBytes + 4096).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr(name_), HasSubstr("266240 bytes")));
  EXPECT_EQ(IoFaultOf(refused).path, name_);
}

TEST_F(PersistDomainTest, ADescriptorOfAnotherKindIsRefused) {
  const int folder = open(directory_.path().c_str(), O_RDONLY | O_CLOEXEC);
  for (const absl::Status& refused :
       {PersistDomain::Map(folder, "folder", 4096,
                           PersistDomain::Media::kUnsafe)
            .status(),
        PersistDomain::ShapeOf(folder, "folder").status(),
        PersistDomain::BadRanges(folder, "folder").status(),
        PersistDomain::UnsafeShutdowns(folder, "folder").status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.ToString(),
                AllOf(HasSubstr("folder"), HasSubstr("DAX device")));
  }
  close(folder);
}

TEST_F(PersistDomainTest, AFileHasAShapeAndNoBadBlocks) {
  const auto shape = PersistDomain::ShapeOf(fd_, name_);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->size_bytes, kBytes);
  const auto bad = PersistDomain::BadRanges(fd_, name_);
  ASSERT_TRUE(bad.ok()) << bad.status();
  EXPECT_TRUE(bad->empty());
  const auto shutdowns = PersistDomain::UnsafeShutdowns(fd_, name_);
  ASSERT_TRUE(shutdowns.ok()) << shutdowns.status();
  EXPECT_EQ(*shutdowns, -1) << "nothing counts them of a file";
}

TEST_F(PersistDomainTest, ARangeBeyondItIsAnErrorOfTheCaller) {
  const auto domain = Map(kBytes);
  ASSERT_TRUE(domain.ok()) << domain.status();
  EXPECT_DEATH((*domain)->Copy(kBytes - 1, Filled(2, 0)).IgnoreError(),
               "internal error");
  EXPECT_DEATH((*domain)->Persist(-4096, 4096).IgnoreError(), "internal error");
  EXPECT_DEATH((*domain)->Persist(0, INT64_MAX).IgnoreError(),
               "internal error");
}

}  // namespace
}  // namespace terrace
