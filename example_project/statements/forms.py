"""The upload form."""

from django import forms
from django.core.files.uploadedfile import UploadedFile

MAX_BYTES = 256 * 1024


class UploadForm(forms.Form):
    """One CSV file; `cleaned_data["file"]` is its name and its text."""

    file = forms.FileField(
        label="Statement",
        help_text="A CSV file with the columns date, text and amount.",
        max_length=200,
        widget=forms.FileInput(attrs={"accept": ".csv,text/csv"}),
    )

    def clean_file(self) -> tuple[str, str]:
        uploaded: UploadedFile = self.cleaned_data["file"]
        if uploaded.size > MAX_BYTES:
            raise forms.ValidationError(f"The file is larger than {MAX_BYTES // 1024} KiB.")
        try:
            text = uploaded.read().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise forms.ValidationError("The file is not text in UTF-8.") from None
        if "\x00" in text:
            raise forms.ValidationError("The file is not text.")
        return uploaded.name, text
