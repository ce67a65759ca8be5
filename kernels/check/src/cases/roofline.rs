//! Cases of [`skein_kernels::cuda::roofline`].

use super::Scale;
use super::case::Bench;
use skein_kernels::cuda::CudaError;
use skein_kernels::cuda::roofline::ReadAll;

pub(super) fn run(bench: &mut Bench) -> Result<(), CudaError> {
    let sizes: &[usize] = match bench.scale {
        Scale::Small => &[4, 4 * 511, 4 * 10_000],
        Scale::Full => &[4, 4 * 1023, 4 << 20, (4 << 24) + 4],
    };
    for &words in sizes {
        let name = format!("read_all {words}");
        if !bench.wants(&name) {
            continue;
        }
        let data: Vec<u32> = (0..words).map(|_| bench.bits()).collect();
        let read = ReadAll::new(&bench.kernels)?;
        let (out, on_device) = (bench.output::<u32>(read.words())?, bench.upload(&data)?);
        read.launch(&bench.stream, *out, *on_device)?;
        let xor = |words: &[u32]| words.iter().fold(0, |all, word| all ^ word);
        let got = xor(&out.read(&bench.stream)?);
        bench.compare_exact(&name, &[got], &[xor(&data)]);
    }
    Ok(())
}
