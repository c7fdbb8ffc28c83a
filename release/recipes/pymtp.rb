class Pymtp < Formula
  desc "@SUMMARY@"
  homepage "@SOURCE@"
  url "@SDIST_URL@"
  sha256 "@SDIST_SHA256@"
  license "MIT"

  depends_on "cmake" => :build
  depends_on "ninja" => :build
  depends_on "python@3.13"

  resource "llama.cpp" do
    url "@ARCHIVE_URL@"
    sha256 "@ARCHIVE_SHA256@"
  end

  def install
    resource("llama.cpp").stage buildpath/"llama.cpp-source"
    ENV["CMAKE_ARGS"] = "-DPYMTP_LLAMA_CPP_DIR=#{buildpath}/llama.cpp-source/@ARCHIVE_FOLDER@"
    system "python3.13", "-m", "venv", libexec
    system libexec/"bin/pip", "install", "--require-hashes", "-r", "requirements/run.txt"
    system libexec/"bin/pip", "install", "-v", "--no-deps", "."
    bin.install_symlink libexec/"bin/pymtp"
  end

  test do
    assert_match "pymtp #{version}", shell_output("#{bin}/pymtp --version")
    assert_match "sea", shell_output("#{bin}/pymtp run -q -n 40 --temp 0 'Tell me about the sea.'")
  end
end
