"""Model folders: parts are found, fed by running the pipeline, and written in variants that hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import octavo
from folders.small_folders import VOCABULARY, decoder, encoder_decoder, text_encoder, texts
from octavo.errors import DataError, ModelError, OutputError, RecipeError
from octavo.folders import beside
from octavo.folders.discovery import read_folder
from octavo.folders.generation import Pipeline
from octavo.folders.parts import Role, role_of
from octavo.folders.samples import folder_data
from octavo.folders.variants import PRESETS, VARIANTS
from octavo.model.files import io
from octavo.model.files.sharing import save_together
from octavo.model.runtime.session import InputSpec


def quantized(source: Path, output: Path, data: Any = None, **more: Any) -> octavo.FolderResult:
    """A folder's variants, not timed."""
    return octavo.quantize_folder(source, data, output=output, **{"seconds": 0, "threads": 1, **more})


def contents(folder: Path) -> set[str]:
    """All files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def session(path: Path) -> ort.InferenceSession:
    """The model as a user loads it."""
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def test_parts_are_known_by_their_inputs_and_outputs(tmp_path: Path) -> None:
    found = read_folder(encoder_decoder(tmp_path / "both"))
    assert {part.stem: part.role for part in found.parts} == {
        "encoder_model": Role.TEXT,
        "decoder_model": Role.DECODER,
        "decoder_with_past_model": Role.DECODER_WITH_PAST,
    }
    _, merged = read_folder(encoder_decoder(tmp_path / "m", merged=True)).parts
    assert merged.role is Role.MERGED_DECODER and len(merged.past) == 4
    assert found.token("decoder_start_token_id") == 1
    assert {path.name for path in found.beside} == {"config.json", "tokenizer.json", "tokenizer_config.json"}


def test_one_file_with_images_and_texts_is_a_pair_of_encoders() -> None:
    inputs = (InputSpec("input_ids", np.dtype(np.int64), ("b", "t")),)
    images = (InputSpec("pixel_values", np.dtype(np.float32), ("n", 3, 8, 8)),)
    assert role_of("model", (*inputs, *images), ("text_embeds", "image_embeds")) is Role.PAIR
    assert role_of("model", images, ("image_embeds",)) is Role.VISION


def test_variants_beside_their_model_are_not_parts(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    shutil.copy(source / "model.onnx", source / "model_q4.onnx")
    found = read_folder(source)
    assert [part.name for part in found.parts] == ["model"]
    assert [path.name for path in found.left_out] == ["model_q4.onnx"]


def test_what_tools_made_of_a_model_is_no_part(tmp_path: Path) -> None:
    source = encoder_decoder(tmp_path / "source")
    for tail in ("_O4", "_qint8_avx512_vnni", "_quint8_avx2", ".int8", "_optimized"):
        shutil.copy(source / "encoder_model.onnx", source / f"encoder_model{tail}.onnx")
    shutil.copy(source / "decoder_model.onnx", source / "encoder_model_fp16_two.onnx")  # other inputs
    shutil.copy(source / "encoder_model.onnx", source / "encoder_model_2.onnx")  # and of the same kind
    found = read_folder(source)
    assert {part.name for part in found.parts} == {
        "encoder_model", "encoder_model_2", "encoder_model_fp16_two", "decoder_model",
        "decoder_with_past_model",
    }  # fmt: skip
    assert len(found.variants) == 5


def test_web_writes_what_transformers_js_loads_by_dtype(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    (source / "README.md").write_text("# the original")
    (source / "pytorch_model.bin").write_bytes(b"weights")
    result = quantized(source, tmp_path / "out", texts(tmp_path / "texts.txt"))
    names = {f"onnx/model{VARIANTS[name].suffix}.onnx" for name in PRESETS["web"]}
    beside = {"config.json", "tokenizer.json", "tokenizer_config.json", "README.original.md"}
    assert contents(tmp_path / "out") == names | beside | {"README.md", "octavo.json"}
    assert result.left_out == ("pytorch_model.bin",)
    manifest = json.loads((tmp_path / "out" / "octavo.json").read_text())
    assert {row["variant"] for row in manifest["variants"]} == set(PRESETS["web"])
    card = (tmp_path / "out" / "README.md").read_text()
    assert all(f"| {name} |" in card for name in PRESETS["web"])
    assert (tmp_path / "out" / "onnx" / "model.onnx").read_bytes() == (source / "model.onnx").read_bytes()


def test_cosine_is_that_of_the_written_file_on_held_back_samples(tmp_path: Path) -> None:
    source, data = text_encoder(tmp_path / "source"), texts(tmp_path / "texts.txt", 9)
    result = quantized(source, tmp_path / "out", data, variants="q4")
    samples = folder_data(read_folder(source), data).samples[-3:]
    models = [session(path) for path in (source / "model.onnx", tmp_path / "out" / "onnx" / "model_q4.onnx")]
    cosines = []
    for sample in samples:
        feed = {name: sample[name] for name in ("input_ids", "attention_mask")}
        x, y = (one.run(None, feed)[0][0].astype(np.float64) for one in models)
        cosines += list((x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1))
    assert result.trials[0].figures[0].value == pytest.approx(np.mean(cosines), abs=1e-6)


def test_divergence_is_that_of_next_token_probabilities(tmp_path: Path) -> None:
    source, data = decoder(tmp_path / "source"), texts(tmp_path / "texts.txt", 2)
    result = quantized(source, tmp_path / "out", data, variants="q4")
    folder = read_folder(source)
    pipeline = Pipeline(folder, tmp_path)
    pipeline.run(folder_data(folder, data).samples)
    feeds = pipeline.feeds["onnx/model"].part(pipeline.ends["onnx/model"][0])
    paths = (source / "onnx" / "model.onnx", tmp_path / "out" / "onnx" / "model_q4.onnx")
    models = [session(path) for path in paths]
    terms = []
    for feed in feeds:
        p, q = (np.exp(one.run(["logits"], feed)[0][0].astype(np.float64)) for one in models)
        p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
        terms += list((p * np.log(p / q)).sum(1))
    assert result.trials[0].figures[0].kind == "kl"
    assert result.trials[0].figures[0].value == pytest.approx(np.mean(terms), rel=1e-4)


def test_a_decoder_is_fed_with_the_cache_of_its_own_steps(tmp_path: Path) -> None:
    folder = read_folder(decoder(tmp_path / "source"))
    pipeline = Pipeline(folder, tmp_path)
    pipeline.run(folder_data(folder, texts(tmp_path / "texts.txt", 1)).samples)
    feeds = list(pipeline.feeds["onnx/model"])
    lengths = [feed["past_key_values.0.key"].shape[2] for feed in feeds]
    prompt = feeds[0]["input_ids"].shape[1]
    assert lengths[0] == 0 and lengths[1] == prompt and lengths == sorted(lengths)
    model = session(folder.parts[0].path)
    tokens = list(feeds[0]["input_ids"][0])
    while len(tokens) < lengths[-1] + 1:  # greedy, without any cache
        tokens.append(int(np.argmax(_whole(model, tokens)[-1])))
    last = model.run(["logits"], feeds[-1])[0][0, -1]
    assert feeds[-1]["input_ids"].item() == tokens[-1]
    np.testing.assert_allclose(last, _whole(model, tokens)[-1], rtol=1e-3, atol=1e-4)


def _whole(model: ort.InferenceSession, tokens: list[int]) -> Any:
    ids = np.int64([tokens])
    empty = np.zeros((1, 2, 0, 32), np.float32)
    feed = {
        "input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(tokens))[None],
        "past_key_values.0.key": empty, "past_key_values.0.value": empty,
    }  # fmt: skip
    return model.run(["logits"], feed)[0][0]


@pytest.mark.parametrize("merged", [False, True])
def test_a_decoder_reads_states_of_its_encoder_and_keeps_their_keys(tmp_path: Path, merged: bool) -> None:
    folder = read_folder(encoder_decoder(tmp_path / "source", merged=merged))
    pipeline = Pipeline(folder, tmp_path)
    pipeline.run(folder_data(folder, texts(tmp_path / "texts.txt", 1)).samples)
    encoder = session(folder.parts[0].path)
    (states,) = encoder.run(None, pipeline.feeds["encoder_model"][0])
    first = "decoder_model_merged" if merged else "decoder_model"
    later = "decoder_model_merged" if merged else "decoder_with_past_model"
    begin, end = pipeline.feeds[first][0], pipeline.feeds[later][-2 if merged else -1]
    np.testing.assert_array_equal(begin["encoder_hidden_states"], states)
    assert begin["input_ids"].tolist() == [[1]]
    assert end["past_key_values.0.encoder.key"].shape[2] == states.shape[1]
    assert end["past_key_values.0.decoder.key"].shape[2] > 1
    if merged:
        assert [bool(feed["use_cache_branch"][0]) for feed in pipeline.feeds[first]][:2] == [False, True]
    whole = pipeline.feeds[first][-1]["input_ids"][0]  # the prompt and what follows it
    answers = session(folder.parts[1].path).run(["logits"], pipeline.feeds[first][-1])[0][0]
    assert whole.size > 8 and answers[:-1].argmax(axis=-1).tolist() == whole[1:].tolist()


def test_decoders_with_and_without_a_cache_have_their_common_weights_once(tmp_path: Path) -> None:
    source, data = encoder_decoder(tmp_path / "source"), texts(tmp_path / "t.txt")
    variants = {"fp32": 0.0, "fp16": 0.02, "q8": 1.0, "q4": 3.0, "q4f16": 3.0}  # and how far logits may be
    result = quantized(source, tmp_path / "out", data, variants=list(variants), max_kl=1)
    assert any(f"once, in the .onnx_data of the former: {', '.join(variants)}" in x for x in result.notes)
    sizes = {
        (one.part.stem, one.variant.name): one.bytes
        for one in result.written
        if one.part.stem.startswith("decoder")
    }
    pipeline = Pipeline(read_folder(source), tmp_path)
    pipeline.run(folder_data(pipeline.folder, data).samples)
    for stem in ("decoder_model", "decoder_with_past_model"):
        for name, most in variants.items():
            suffix = VARIANTS[name].suffix
            assert (tmp_path / "out" / "onnx" / f"decoder_model{suffix}.onnx_data").is_file()
            feed = pipeline.feeds[stem][0]
            (due,) = session(source / f"{stem}.onnx").run(["logits"], feed)
            (found,) = session(tmp_path / "out" / "onnx" / f"{stem}{suffix}.onnx").run(["logits"], feed)
            np.testing.assert_allclose(found, due, atol=most)
            assert sizes["decoder_with_past_model", name] < 0.5 * sizes["decoder_model", name]


def test_4_bit_weights_of_two_decoders_are_the_same_integers(tmp_path: Path) -> None:
    source = encoder_decoder(tmp_path / "source")
    result = quantized(source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="q4", max_kl=1)
    found: list[dict[str, Any]] = []
    for stem in ("decoder_model", "decoder_with_past_model"):
        made = onnx.load(tmp_path / "out" / "onnx" / f"{stem}_q4.onnx")
        arrays = {one.name: onnx.numpy_helper.to_array(one) for one in made.graph.initializer}
        products = [one for one in made.graph.node if one.op_type == "MatMulNBits"]
        found.append({one.name: [arrays[name] for name in one.input[1:] if name] for one in products})
    first, later = found
    assert len(first) > len(later) > 5 and later.keys() <= first.keys()
    for name, arrays in later.items():
        for own, other in zip(arrays, first[name], strict=True):
            np.testing.assert_array_equal(own, other)
    (trial,) = [one for one in result.written if one.part.role is Role.DECODER_WITH_PAST]
    pipeline = Pipeline(read_folder(source), tmp_path)
    pipeline.run(folder_data(pipeline.folder, tmp_path / "t.txt").samples)
    cut = pipeline.ends["decoder_with_past_model"][-4]
    terms = []
    paths = (source / "decoder_with_past_model.onnx", tmp_path / "out/onnx/decoder_with_past_model_q4.onnx")
    models = [session(path) for path in paths]
    for feed in pipeline.feeds["decoder_with_past_model"].part(cut):
        p, q = (np.exp(one.run(["logits"], feed)[0][0].astype(float)) for one in models)
        p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
        terms += list((p * np.log(p / q)).sum(1))
    assert trial.figures[0].value == pytest.approx(np.mean(terms), rel=1e-3)  # of the file that was written


def test_an_encoder_is_judged_by_the_decoder_that_reads_it(tmp_path: Path) -> None:
    source, data = encoder_decoder(tmp_path / "source"), texts(tmp_path / "t.txt")
    result = quantized(source, tmp_path / "out", data, variants="q4", max_kl=1)
    (trial,) = [one for one in result.written if one.part.role is Role.TEXT]
    kl, cosine = trial.figures
    assert (kl.kind, cosine.kind) == ("kl", "cosine") and 0 < kl.value < 1
    pipeline = Pipeline(read_folder(source), tmp_path)
    pipeline.run(folder_data(pipeline.folder, data).samples)
    models = [
        session(path) for path in (source / "encoder_model.onnx", tmp_path / "out/onnx/encoder_model_q4.onnx")
    ]
    decoder_model, terms = session(source / "decoder_model.onnx"), []
    for number in (6, 7, 8):  # held back
        feed = pipeline.feeds["decoder_model"][2 * number + 1]
        p, q = (
            np.exp(
                decoder_model.run(["logits"], {**feed, "encoder_hidden_states": states})[0][0].astype(float)
            )
            for states in (one.run(None, pipeline.feeds["encoder_model"][number])[0] for one in models)
        )
        p, q = p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)
        terms += list((p * np.log(p / q)).sum(1))
    assert kl.value == pytest.approx(np.mean(terms), rel=1e-3)


def test_integers_in_blocks_stand_in_where_dynamic_ones_do_not_hold(tmp_path: Path) -> None:
    source, data = text_encoder(tmp_path / "source"), texts(tmp_path / "t.txt")
    (easy,) = quantized(source, tmp_path / "a", data, variants="q8").written
    assert easy.figures[0].value < 0.99995
    (hard,) = quantized(source, tmp_path / "b", data, variants="q8", min_cosine=0.99995).written
    model = onnx.load(tmp_path / "b" / "onnx" / "model_quantized.onnx")
    kinds = {one.op_type for one in model.graph.node}
    assert "MatMulNBits" in kinds and hard.figures[0].value >= 0.99995
    assert "GatherBlockQuantized" not in kinds  # not in every build for browsers


def test_data_may_be_given_for_several_parts(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    images = helper.make_model(
        helper.make_graph(
            [helper.make_node("Flatten", ["pixel_values"], ["image"])],
            "vision",
            [helper.make_tensor_value_info("pixel_values", 1, ["n", 3, 4, 4])],
            [helper.make_tensor_value_info("image", 1, ["n", 48])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(images, source / "vision_model.onnx")
    arrays = {"pixel_values": np.ones((4, 3, 4, 4), np.float32)}
    np.savez(tmp_path / "images.npz", **arrays)
    ids = np.arange(20).reshape(4, 5)
    np.savez(tmp_path / "both.npz", input_ids=ids, attention_mask=np.ones_like(ids), **arrays)
    folder = read_folder(source)
    named = {"model": texts(tmp_path / "t.txt"), "vision_model": tmp_path / "images.npz"}
    for data in (named, tmp_path / "both.npz"):
        found = folder_data(folder, data)
        assert len(found.samples) == 4 and found.samples[0].keys() >= {"input_ids", "pixel_values"}


def test_both_branches_of_a_merged_decoder_are_quantized_and_share_their_weights(tmp_path: Path) -> None:
    source = encoder_decoder(tmp_path / "source", merged=True)
    result = quantized(
        source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="fp32,q8,q4,fp16", max_kl=1
    )
    assert not result.refused
    sizes = {one.variant.name: one.bytes for one in result.trials if one.part.role is Role.MERGED_DECODER}
    assert sizes["q4"] < 0.4 * sizes["fp32"] and sizes["q8"] < 0.5 * sizes["fp32"]
    model = onnx.load(tmp_path / "out" / "onnx" / "decoder_model_merged_q4.onnx")
    (branch,) = [node for node in model.graph.node if node.op_type == "If"]
    for attribute in branch.attribute:
        assert any(node.op_type == "MatMulNBits" for node in attribute.g.node)


def test_a_variant_below_its_floor_is_not_written_and_the_nearest_is_named(tmp_path: Path) -> None:
    source, data = text_encoder(tmp_path / "source"), texts(tmp_path / "texts.txt")
    result = quantized(source, tmp_path / "out", data, variants="fp16,q8,q4", min_cosine=0.999)
    (refused,) = result.refused
    assert refused.variant.name == "q4" and "0.999 is required" in refused.reason
    assert result.to_dict()["variants"][2]["nearest"] == "q8"
    assert "onnx/model_q4.onnx" not in contents(tmp_path / "out")
    assert "nearest that holds is q8" in str(result)


def test_nothing_is_written_where_no_variant_holds(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    with pytest.raises(OutputError, match="No variant"):
        quantized(source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="q2", min_cosine=0.9999)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "t.txt"]


def test_a_model_that_overflows_float16_has_no_variant_with_infinities(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    model = onnx.load(source / "model.onnx")
    for one in model.graph.initializer:
        if one.name == "mlp_down_w":
            array = onnx.numpy_helper.to_array(one) * np.float32(1e6)
            one.CopyFrom(onnx.numpy_helper.from_array(array, one.name))
    onnx.save(model, source / "model.onnx")
    result = quantized(source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="fp16")
    assert result.written  # what overflows stays in float32
    feed = folder_data(read_folder(source), texts(tmp_path / "t.txt")).samples[0]
    made = session(tmp_path / "out" / "onnx" / "model_fp16.onnx")
    (found,) = made.run(None, {name: feed[name] for name in ("input_ids", "attention_mask")})
    assert np.all(np.isfinite(found))


def test_auto_keeps_names_and_chooses_for_each_part(tmp_path: Path) -> None:
    source = encoder_decoder(tmp_path / "source")
    result = quantized(source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="auto", max_kl=1)
    models = {name for name in contents(tmp_path / "out") if name.endswith(".onnx")}
    assert models == {"encoder_model.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"}
    assert result.chosen["decoder_model"] == "q4"
    assert result.chosen["encoder_model"] in ("static", "q8")
    for name in models:
        session(tmp_path / "out" / name)


def test_two_decoders_are_merged_as_transformers_js_loads_them(tmp_path: Path) -> None:
    source = encoder_decoder(tmp_path / "source")
    result = quantized(
        source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="fp32,q8,q4,q2", max_kl=0.2
    )
    made = [one for one in result.trials if one.part.role is Role.MERGED_DECODER]
    assert [one.variant.name for one in made] == ["fp32", "q8", "q4"] and all(one.holds for one in made)
    ids, states = np.int64([[1, 7, 9]]), np.random.default_rng(0).standard_normal((1, 5, 64))
    for suffix in ("", "_quantized", "_q4"):
        first, later, both = (
            session(tmp_path / f"out/onnx/{name}{suffix}.onnx")
            for name in ("decoder_model", "decoder_with_past_model", "decoder_model_merged")
        )
        names = [one.name for one in first.get_outputs()]
        feed = {"input_ids": ids, "encoder_hidden_states": states.astype(np.float32)}
        empty = {one.name: np.zeros((1, 2, 0, 32), np.float32) for one in later.get_inputs()[1:]}
        due = dict(zip(names, first.run(None, feed), strict=True))
        found = both.run(names, {**feed, **empty, "use_cache_branch": np.array([False])})
        for name, value in zip(names, found, strict=True):
            np.testing.assert_allclose(value, due[name], atol=1e-5)
        cache = {name.replace("present", "past_key_values"): due[name] for name in names[1:]}
        feed["input_ids"] = ids[:, :1]
        (logits,) = later.run(["logits"], {"input_ids": ids[:, :1], **cache})
        (found,) = both.run(["logits"], {**feed, **cache, "use_cache_branch": np.array([True])})
        np.testing.assert_allclose(found, logits, atol=1e-5)
        size = (tmp_path / f"out/onnx/decoder_model_merged{suffix}.onnx").stat().st_size
        alone = beside.size_of(tmp_path / f"out/onnx/decoder_model{suffix}.onnx")
        assert size < 1.2 * alone  # weights of both lie in it once


def test_decoders_of_two_opsets_are_not_merged(tmp_path: Path) -> None:
    source = encoder_decoder(tmp_path / "source")
    later = onnx.load(source / "decoder_with_past_model.onnx")
    later.opset_import[0].version += 1
    onnx.save(later, source / "decoder_with_past_model.onnx")
    result = quantized(source, tmp_path / "out", variants="fp32")
    assert any("can't be merged" in note and "opsets 17 and 18" in note for note in result.notes)
    assert "onnx/decoder_model_merged.onnx" not in contents(tmp_path / "out")


def test_variants_of_a_float16_model_have_the_names_of_those_of_float32(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    octavo.quantize(
        source / "model.onnx", float_type="fp16:compute", io="fp16", output=source / "model_fp16.onnx"
    )
    (source / "model.onnx").unlink()
    data = texts(tmp_path / "t.txt")
    result = quantized(source, tmp_path / "out", data, variants="fp32,fp16,q8")
    models = {name for name in contents(tmp_path / "out") if name.endswith(".onnx")}
    assert models == {"onnx/model_fp16.onnx", "onnx/model_quantized.onnx"}  # the folder's own, and q8
    (refused,) = result.refused
    assert refused.variant.name == "fp16" and "what the folder has" in refused.reason


def test_models_that_share_a_file_of_weights_share_it_in_the_output(tmp_path: Path) -> None:
    source = encoder_decoder(tmp_path / "source")
    paths = [source / f"{name}.onnx" for name in ("decoder_model", "decoder_with_past_model")]
    models = [io.load(path.rename(path.with_suffix(".old"))) for path in paths]
    save_together(models, paths, "weights.bin")
    quantized(source, tmp_path / "out", variants="fp32")
    assert not (tmp_path / "out/onnx/decoder_with_past_model.onnx_data").exists()
    for path in paths:
        session(tmp_path / "out/onnx" / path.name)


def test_parts_may_have_variants_of_their_own(tmp_path: Path) -> None:
    source = encoder_decoder(tmp_path / "source")
    quantized(
        source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="q8", parts={"decoder*": "q4"}, max_kl=1
    )
    models = {name for name in contents(tmp_path / "out") if name.endswith(".onnx")}
    assert models == {
        "onnx/encoder_model_quantized.onnx",
        "onnx/decoder_model_q4.onnx",
        "onnx/decoder_with_past_model_q4.onnx",
        "onnx/decoder_model_merged_q4.onnx",
    }


def test_without_data_prompts_are_sampled_from_the_model(tmp_path: Path) -> None:
    folder = read_folder(decoder(tmp_path / "source"))
    data = folder_data(folder, None)
    pipeline = Pipeline(folder, tmp_path)
    pipeline.run(data.samples, sampled=data.made_up)
    prompts = [feed["input_ids"] for feed in pipeline.feeds["onnx/model"] if feed["input_ids"].size > 1]
    assert len(prompts) == len(data.samples) and len({prompt.tobytes() for prompt in prompts}) > 1
    assert all(prompt.max() < len(VOCABULARY) for prompt in prompts)
    result = quantized(folder.root, tmp_path / "out", variants="q4,static")
    assert result.written and "random" in result.notes[0]


def test_a_part_that_nothing_feeds_is_copied_in_float_with_the_reason(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    model = onnx.load(source / "model.onnx")
    value = onnx.helper.make_tensor_value_info("mystery", onnx.TensorProto.FLOAT, ["n"])
    model.graph.input.append(value)
    onnx.save(model, source / "other.onnx")
    result = quantized(source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="q8")
    (refused,) = result.refused
    assert refused.part.name == "other" and "'mystery'" in refused.reason
    assert "onnx/other.onnx" in contents(tmp_path / "out")


def test_weights_beside_a_model_are_named_as_transformers_js_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = text_encoder(tmp_path / "source")
    onnx.save(
        onnx.load(source / "model.onnx"), source / "model.onnx",
        save_as_external_data=True, location="weights.bin", size_threshold=1024,
    )  # fmt: skip
    monkeypatch.setattr("octavo.model.files.io.EXTERNAL_ABOVE", 1000)
    quantized(source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="fp32,q4")
    found = contents(tmp_path / "out")
    assert {"onnx/model.onnx_data", "onnx/model_q4.onnx_data"} <= found
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    named = config["transformers.js_config"]["use_external_data_format"]
    assert named == {"model.onnx": 1, "model_q4.onnx": 1}
    session(tmp_path / "out" / "onnx" / "model_q4.onnx")


def test_links_that_lead_back_or_nowhere_are_seen_through(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    (source / "again").symlink_to(source)
    (source / "inner").symlink_to(tmp_path / "nothing")
    assert [part.name for part in read_folder(source).parts] == ["model"]
    (source / "other.onnx").symlink_to(tmp_path / "nothing.onnx")
    with pytest.raises(ModelError, match=r"other\.onnx: it is a link to a file that does not exist"):
        read_folder(source)


def test_parts_of_one_name_in_two_places_stay_apart(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    (source / "onnx").mkdir()
    shutil.copy(source / "model.onnx", source / "onnx" / "model.onnx")
    result = quantized(source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="q8")
    assert [trial.file.as_posix() for trial in result.written if trial.file is not None] == [
        "model_quantized.onnx",
        "onnx/model_quantized.onnx",
    ]


def test_the_table_has_a_column_for_the_task_only_where_it_was_measured(tmp_path: Path) -> None:
    source, data = text_encoder(tmp_path / "source"), texts(tmp_path / "t.txt")
    shown = str(quantized(source, tmp_path / "out", data, variants="q8"))
    head, row = next(line for line in shown.splitlines() if "variant" in line), shown.splitlines()[3]
    assert head.split() == ["variant", "size", "of", "float", "fidelity", "speed", "memory", "load"]
    assert "cosine 0.9" in row


def test_linked_files_are_read_as_those_of_the_hub_are(tmp_path: Path) -> None:
    blobs = text_encoder(tmp_path / "blobs")
    source = tmp_path / "snapshot"
    source.mkdir()
    for file in blobs.iterdir():
        (source / file.name).symlink_to(file)
    quantized(source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="fp32,q8")
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert (tmp_path / "out" / "onnx" / "model.onnx").read_bytes() == (blobs / "model.onnx").read_bytes()


def test_an_output_that_is_read_or_not_ours_is_refused(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").write_text("keep")
    for output in (source, source / "out", tmp_path, other, source / "model.onnx", tmp_path / "no" / "out"):
        with pytest.raises(OutputError):
            quantized(source, output)
    assert contents(other) == {"precious.txt"}


def test_an_earlier_output_is_replaced_as_a_whole(tmp_path: Path) -> None:
    source, data = text_encoder(tmp_path / "source"), texts(tmp_path / "t.txt")
    quantized(source, tmp_path / "out", data, variants="q8")
    quantized(source, tmp_path / "out", data, variants="fp16")
    assert "onnx/model_fp16.onnx" in contents(tmp_path / "out")
    assert "onnx/model_quantized.onnx" not in contents(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source", "t.txt"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interruption_leaves_the_earlier_output_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Any
) -> None:
    source, data = text_encoder(tmp_path / "source"), texts(tmp_path / "t.txt")
    quantized(source, tmp_path / "out", data, variants="q8")
    before = {name: (tmp_path / "out" / name).read_bytes() for name in contents(tmp_path / "out")}

    def fail(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(beside, "copy_files", fail)
    with pytest.raises((KeyboardInterrupt, OutputError)):
        quantized(source, tmp_path / "out", data, variants="fp16")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in contents(tmp_path / "out")} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "source", "t.txt"]


def test_timing_gives_speed_memory_and_load_time(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    result = quantized(source, tmp_path / "out", texts(tmp_path / "t.txt"), variants="q8", seconds=0.01)
    (trial,) = result.trials
    assert trial.speed is not None and trial.memory_bytes is not None and trial.load_seconds is not None


def test_wrong_requests_say_what_is_there(tmp_path: Path) -> None:
    source = text_encoder(tmp_path / "source")
    with pytest.raises(RecipeError, match="q4f16"):
        quantized(source, tmp_path / "out", variants="q4f61")
    with pytest.raises(RecipeError, match="No part"):
        quantized(source, tmp_path / "out", parts={"vision": "fp16"})
    (source / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"no tokenizer\.json"):
        quantized(source, tmp_path / "out", texts(tmp_path / "t.txt"))
    (source / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"config\.json"):
        quantized(source, tmp_path / "out")
    with pytest.raises(ModelError, match="no ONNX file"):
        (tmp_path / "empty").mkdir()
        quantized(tmp_path / "empty", tmp_path / "out")


def test_a_folder_for_genai_is_told_which_file_its_configuration_opens(tmp_path: Path) -> None:
    source = decoder(tmp_path / "source")
    (source / "genai_config.json").write_text(json.dumps({"model": {"decoder": {"filename": "model.onnx"}}}))
    named = quantized(source, tmp_path / "named", variants="q8")
    assert any("genai_config.json" in note for note in named.notes)
    chosen = quantized(source, tmp_path / "chosen", variants="auto")
    assert not any("genai_config.json" in note for note in chosen.notes)
    assert "onnx/model.onnx" in contents(tmp_path / "chosen")
